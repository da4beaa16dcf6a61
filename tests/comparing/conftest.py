"""A folder to compare losses on, and recipes of seconds."""

import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from compared import QUICK, small_check
from tiny import tiny_recipe, wait_until, write_stripes
from trained import always_one_thread, undrawn

from weiss.comparing import carry_out
from weiss.training import StoppedError

__all__ = ["always_one_thread", "undrawn"]


@pytest.fixture(scope="session")
def stripes(tmp_path_factory):
    """A folder of 20 classes with 4 images each; 12 train, 8 test."""
    return write_stripes(tmp_path_factory.mktemp("data") / "stripes", 20, 4)


@pytest.fixture(scope="session")
def recipe(stripes):
    """A recipe of a second."""
    return tiny_recipe(stripes, **QUICK)


@pytest.fixture(scope="session")  # tests that go to another process and back leave a module
def undisturbed(recipe, tmp_path_factory):
    """A small reality check, done by one process without a break; only to be read."""
    out = tmp_path_factory.mktemp("undisturbed") / "bench"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every test here, but this comes before what is a module's
    try:
        return out, carry_out(small_check(recipe), out, quiet=True)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def interrupted():
    """Press Ctrl-C as soon as something is so, and expect that the comparison stops."""

    @contextmanager
    def once(reached):
        def stop():
            wait_until(reached)
            os.kill(os.getpid(), signal.SIGINT)

        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(StoppedError, match="Start the same command again"):
            yield
        stopper.join()

    return once


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
