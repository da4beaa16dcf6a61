"""A real Ray cluster of two raylets on this machine, one of which can be killed."""

import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tiny import begin, environment

TESTS = Path(__file__).parent


class Cluster:
    """A head with one core, and a raylet with another that can be killed and comes back."""

    def __init__(self):
        from ray.cluster_utils import Cluster as RayletsHere

        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need a short path
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.client_port = probe.getsockname()[1]
        options = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}
        options |= {"temp_dir": self.folder, "ray_client_server_port": self.client_port}
        # A dead machine is noticed within seconds, not in half a minute.
        options["_system_config"] = {"health_check_period_ms": 500, "health_check_timeout_ms": 2000}
        with self.seeing_tests():
            self.raylets = RayletsHere(initialize_head=True, head_node_args=options)
        self.other = None
        self.address = self.raylets.address

    @contextmanager
    def seeing_tests(self):
        """Let workers import weiss, and the units of these tests, from here."""
        source = str(Path(sys.modules["weiss"].__file__).parents[1])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{source}:{TESTS}")
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            yield

    def add(self):
        """Add a second raylet, unless it is there."""
        if self.other is None:
            with self.seeing_tests():
                self.other = self.raylets.add_node(num_cpus=1)
            self.raylets.wait_for_nodes()

    @property
    def other_raylet(self):
        return psutil.Process(self.other.all_processes["raylet"][0].process.pid)

    def kill_other(self):
        """Kill the second raylet with -9, then its agents; its workers end by themselves."""
        self.other_raylet.kill()
        self.raylets.remove_node(self.other, allow_graceful=False)
        self.other = None

    def environment(self):
        return environment(RAY_ADDRESS=self.address)

    def begin(self, command):
        return begin(command, env=self.environment(), stderr=subprocess.STDOUT)

    def worker_on(self, key, raylet=None):
        """Return the process that does a unit, on any raylet or on one; None if there is none."""
        for process in psutil.process_iter(["cmdline", "ppid"]):
            title = " ".join(process.info["cmdline"] or ())
            if title.startswith(f"ray::{key}") and raylet in (None, process.info["ppid"]):
                return process
        return None

    def close(self):
        self.raylets.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


def said_by(process, code=0):
    said = process.communicate(timeout=300)[0].decode()
    assert process.returncode == code, said
    return said
