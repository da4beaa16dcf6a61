"""The command line, as somebody types it, in this process: to start another takes seconds."""

import io
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest


@dataclass
class Done:
    """What a command said, and the code it ended with."""

    returncode: int
    stdout: str
    stderr: str


def weiss(*words, cwd="."):
    """Run a command to its end, in a folder."""
    from weiss.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, chdir(cwd):
        patch.setattr(sys, "argv", ["weiss", *map(str, words)])
        patch.setenv("COLUMNS", "120")
        patch.setattr(warnings, "showwarning", None)  # which the command sets
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def said(*words, **options):
    """Run a command that must succeed, and return what it printed."""
    done = weiss(*words, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(*words, code=2, **options):
    """Run a command that must be refused without output; return the message, on one line."""
    done = weiss(*words, **options)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())
