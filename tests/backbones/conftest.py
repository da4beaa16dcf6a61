"""How tests of backbones run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Work on one core: on maps this small two threads mostly wait, long if the other is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cub(cub_root):
    """The folder with one subfolder of photographs for each species."""
    return cub_root / "CUB_200_2011" / "images"
