"""How tests of backbones run."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def cub(cub_root):
    """The folder with one subfolder of photographs for each species."""
    return cub_root / "CUB_200_2011" / "images"
