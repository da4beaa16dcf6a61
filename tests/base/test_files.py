"""Files are whole or not there."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from weiss._base.files import alone, cache_folder, replacing


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("new")
        assert path.read_text() == "old"
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_the_cache_folder_follows_the_desktop_standard(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "weiss"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parts[-2:] == (".cache", "weiss")


HOLDER = """
import sys, time
from pathlib import Path
from weiss._base.files import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another_process(path):
    """A process that holds the lock until its standard input is closed."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_at_once(tmp_path):
    with held_by_another_process(tmp_path / "run") as process:
        for _ in range(3):
            with pytest.raises(BlockingIOError), alone(tmp_path / "run", wait=False):
                pytest.fail("two at a time")
        assert process.poll() is None
        with alone(tmp_path / "other", wait=False):
            pass  # another path is another matter


def test_a_process_that_was_killed_holds_nothing(tmp_path):
    with held_by_another_process(tmp_path / "run") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / ".run.lock").exists()  # nobody was left to remove it
        for _ in range(2):
            with alone(tmp_path / "run", wait=False):
                pass
        assert list(tmp_path.iterdir()) == []


def test_a_waiting_thread_holds_the_lock_though_its_file_was_removed(tmp_path, monkeypatch):
    found, waits, flock = [], threading.Event(), fcntl.flock

    def wait_for_it():
        with alone(tmp_path / "run"):
            try:
                with alone(tmp_path / "run", wait=False):
                    found.append("two at a time")
            except BlockingIOError:
                found.append("alone")

    def seen(*arguments):
        waits.set()  # its file is open
        flock(*arguments)

    thread = threading.Thread(target=wait_for_it)
    with alone(tmp_path / "run"):
        monkeypatch.setattr(fcntl, "flock", seen)
        thread.start()
        assert waits.wait(30)
    thread.join(30)
    assert found == ["alone"]
    assert list(tmp_path.iterdir()) == []


def test_one_process_is_not_alone_twice_and_a_refusal_does_not_free_the_lock(tmp_path):
    with alone(tmp_path / "run", wait=False):
        for _ in range(2):
            with pytest.raises(BlockingIOError), alone(tmp_path / "run", wait=False):
                pytest.fail("two at a time")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wait", [True, False])
def test_an_error_frees_the_lock(tmp_path, wait):
    with pytest.raises(RuntimeError), alone(tmp_path / "run", wait=wait):
        raise RuntimeError
    with alone(tmp_path / "run", wait=False):
        pass


def test_a_folder_that_cannot_lock_works_without(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / "run", wait=False):
        assert os.path.lexists(tmp_path / ".run.lock")
    assert list(Path(tmp_path).iterdir()) == []


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".run.lock").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"), alone(tmp_path / "run"):
        pytest.fail("the lock of somebody else's file")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_afterwards(
    tmp_path, monkeypatch
):
    done, synchronise, rename = [], os.fsync, os.replace

    def fsync(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir())
        synchronise(descriptor)

    def replace(*paths):
        done.append("renamed")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    assert done == [False, "renamed", True]
