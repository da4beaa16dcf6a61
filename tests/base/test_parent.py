"""A process ends with the one that started it, also if that one is killed."""

import os
import sys

import psutil
import pytest
from miniature import write_image
from tiny import begin

SLEEPER = """
import sys, time
assert sys.argv[1:] in ([], ["word"])
print("ready", flush=True)
time.sleep(600)
"""
STARTS = """
import subprocess, sys
from weiss._base.parent import command_with_parent
subprocess.run(command_with_parent("sleeper", "word"))
"""
DECODES = """
import os, sys, time
from weiss._base.decoding import Decoders
decoders = Decoders(1)
decoders.submit([sys.argv[1]], len).result()
print("ready", flush=True)
time.sleep(600)
"""
WATCHES = """
from weiss._base import parent
parent.sys.platform = "another"
parent.LOOK_SECONDS = 0.01
parent.end_with(parent.os.getppid())
import sleeper
"""


def kill_and_wait(process, *, suspended):
    """Kill a program that has said it is ready; its descendants end, also suspended ones."""
    assert process.stdout.readline() == b"ready\n"
    children = psutil.Process(process.pid).children(recursive=True)
    for child in children if suspended else ():
        child.suspend()
    process.kill()
    process.wait()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    return len(children)


@pytest.fixture
def places(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "watches.py").write_text(WATCHES)
    (tmp_path / "starts.py").write_text(STARTS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {"env": {**os.environ, "PYTHONPATH": path}}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process must run to notice it")
def test_a_module_ends_with_the_program_that_runs_it(places):
    """And what that one has started ends as well."""
    twice = STARTS.replace("sleeper", "starts")
    assert kill_and_wait(begin([sys.executable, "-c", twice], **places), suspended=True) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process must run to notice it")
def test_decoding_processes_end_with_the_program_that_they_decode_for(tmp_path):
    write_image(tmp_path / "photo.jpg", 0)
    decoding = begin([sys.executable, "-c", DECODES, str(tmp_path / "photo.jpg")])
    assert kill_and_wait(decoding, suspended=True) == 1


def test_where_the_system_does_not_end_it_a_process_looks_for_its_parent(places):
    line = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'watches'])"
    assert kill_and_wait(begin([sys.executable, "-c", line], **places), suspended=False) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a script for a shell")
def test_a_python_that_starts_python_in_another_process_is_no_lost_parent(places, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    wrapped = f"import sys; sys.executable = {str(wrapper)!r}\n{STARTS}"
    assert kill_and_wait(begin([sys.executable, "-c", wrapped], **places), suspended=False) == 2


def test_a_process_whose_parent_has_ended_already_ends_at_once():
    line = "from weiss._base.parent import end_with; end_with(1 << 30); print('went on')"
    process = begin([sys.executable, "-c", line])
    assert process.communicate()[0] == b""
    assert process.returncode == -9
