"""A folder to compare losses on, and recipes of seconds."""

import os
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny import tiny_recipe, write_stripes
from trained import always_one_thread, undrawn

__all__ = ["always_one_thread", "undrawn"]


@pytest.fixture(scope="session")
def stripes(tmp_path_factory):
    """A folder of 20 classes with 4 images each; 12 train, 8 test."""
    return write_stripes(tmp_path_factory.mktemp("data") / "stripes", 20, 4)


@pytest.fixture(scope="session")
def recipe(stripes):
    """A recipe of a second."""
    return tiny_recipe(stripes, train__epochs=1, train__warmup_epochs=0, train__batch_size=8)


@pytest.fixture
def at_once():
    """Call a function for each of some things at one moment, in threads; return all results."""

    def call_all(function, given):
        start = threading.Barrier(len(given))

        def call(each):
            start.wait()
            return function(each)

        with ThreadPoolExecutor(len(given)) as pool:
            return list(pool.map(call, given))

    return call_all


class Server:
    """A PostgreSQL server of our own, in a folder.

    Args:
        folder: for its data.
    """

    def __init__(self, folder):
        bins = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
        found = shutil.which("initdb") or (str(sorted(bins)[-1] / "initdb") if bins else None)
        if found is None:
            pytest.fail("these tests start a PostgreSQL server: install postgresql")
        self.folder, self.bins = folder, Path(found).resolve().parent
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.user = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            self.user = {"user": "nobody"}
            for path in (folder, *folder.parents):
                if path.is_relative_to("/tmp") and path != Path("/tmp"):
                    path.chmod(0o755)
            shutil.chown(folder, "nobody")
        self._run("initdb", "-D", "data", "-U", "weiss", "-A", "trust", "--no-sync")
        self.address = f"postgresql://weiss@127.0.0.1:{self.port}/postgres"

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1"
        options += f" -c unix_socket_directories={self.folder}"
        self._run("pg_ctl", "-D", "data", "-o", options, "-l", "log", "-w", "start")

    def stop(self):
        self._run("pg_ctl", "-D", "data", "-m", "fast", "-w", "stop")

    def _run(self, name, *words):
        # Nothing is captured: the server keeps the pipe, and one would wait for it for ever.
        command = [str(self.bins / name), *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, cwd=self.folder, **quiet, **self.user)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running PostgreSQL server."""
    one = Server(tmp_path_factory.mktemp("postgres"))
    one.start()
    yield one
    one.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def storage(request, tmp_path):
    """The address of a storage: a file, and where a server can be started, PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite3")
    return request.getfixturevalue("server").address
