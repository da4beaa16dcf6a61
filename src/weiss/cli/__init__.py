"""The command line: each command reads its arguments, calls one function and prints."""

from weiss.cli.commands import app, main

__all__ = ["app", "main"]
