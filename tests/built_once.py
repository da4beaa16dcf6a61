"""Expensive things that tests only read, built once for all workers of a test run.

Workers of pytest-xdist are processes: a fixture of scope "session" is built once in each of them.
"""

import shutil
from pathlib import Path

from weiss._base.files import alone

ROOT = None
"""The folder that all workers of this test run share; conftest sets it."""


def built_once(name, make):
    """Return a folder that ``make(folder)`` has filled, in whichever worker came first.

    Args:
        name: of the folder; one name, one content.
        make: writes everything into the empty folder it is given. Others read it and change
            nothing.
    """
    folder = Path(ROOT) / name
    with alone(folder):
        if not folder.is_dir():
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder
