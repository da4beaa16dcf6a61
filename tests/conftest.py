"""What does not come with the code, and a library that needs help to be imported."""

import os
from pathlib import Path

import built_once
import pytest
import torch
from tiny import BEGUN
from unrendered import leave_unrendered

DEFINED = []


def pytest_addoption(parser):
    parser.addoption("--weights", help="folder with resnet50_v1_imagenet_fp16.safetensors")
    parser.addoption("--cub", help="folder that holds CUB_200_2011, as weiss data check takes it")


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory):
    """Tell `built_once` where all workers of this test run meet."""
    own = tmp_path_factory.getbasetemp()
    built_once.ROOT = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "built_once"
    built_once.ROOT.mkdir(exist_ok=True)


@pytest.fixture(autouse=True)
def nothing_outlives_its_test():
    """End what a test has begun and not ended, as one that fails does not."""
    yield
    while BEGUN:
        with BEGUN.pop() as process:  # which waits for it and closes its pipes
            process.kill()


@pytest.fixture(scope="module")
def one_thread():
    """Compute with one thread: on so little two mostly wait, and bits do not depend on cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unrendered(monkeypatch):
    """Write next to nothing as a figure, where a test is not about what figures show."""
    leave_unrendered(monkeypatch)


@pytest.fixture
def decoded(monkeypatch):
    """How many images each decoding of a whole table in this process had."""
    from weiss.data import cache

    counts, real = [], cache.decode_table

    def decode(sink, table, *more):
        counts.append(len(table))
        return real(sink, table, *more)

    monkeypatch.setattr(cache, "decode_table", decode)
    return counts


@pytest.fixture(scope="session")
def torchvision():
    """Import torchvision, also where its compiled part does not fit the CPU build of torch.

    It then dies at import because two operators for boxes are unknown; nothing here calls them, so
    it is enough that they have a signature.
    """
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DEFINED.append(library)  # its operators go when it does
        import torchvision
    return torchvision


@pytest.fixture(scope="session")
def real_weights(request):
    name = "resnet50_v1_imagenet_fp16.safetensors"
    return _given(request, "--weights", f"the folder with {name}") / name


@pytest.fixture(scope="session")
def cub_root(request):
    return _given(request, "--cub", "the folder that holds CUB_200_2011")


def _given(request, option, what):
    folder = request.config.getoption(option)
    if folder is None:
        pytest.fail(f"this test needs {what}: pytest -m data {option}=FOLDER tests", pytrace=False)
    if not Path(folder).is_dir():
        pytest.fail(f"{option} must be {what}; there is no folder {folder}", pytrace=False)
    return Path(folder)


@pytest.fixture(scope="module")
def running():
    """A cluster of Ray for the tests of a file, which may lack a raylet."""
    pytest.importorskip("ray")
    from raylets import Cluster

    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(running):
    """The cluster, whole."""
    running.add()
    return running
