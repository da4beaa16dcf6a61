"""BN-Inception against the values of an independent program."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from weiss.backbones import BNInception

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bn_inception.json").read_text())


def filled(name, shape):
    """The golden file's deterministic weights."""
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape)
    n = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 4:
        return n * np.sqrt(2 / np.prod(shape[1:]))
    if name == "last_linear.weight":
        return n * np.sqrt(1 / shape[1])
    if name.endswith("_bn.weight"):
        return 1 + 0.1 * n
    if name.endswith("running_var"):
        return 1 + 0.1 * np.abs(n)
    return 0.1 * n


@pytest.fixture(scope="module")
def network():
    weights = {
        name: torch.as_tensor(filled(name, tuple(shape)))
        for name, shape in GOLDEN["state_dict"].items()
    }
    network = BNInception().double().eval()
    network.load_state_dict(weights)
    return network


@pytest.fixture(scope="module")
def images():
    return torch.as_tensor(np.random.RandomState(7).standard_normal((2, 3, 224, 224)) * 50)


@pytest.fixture(scope="module")
def maps(network, images):
    with torch.no_grad():
        return network.features(images)


def test_names_shapes_and_their_order_are_those_of_the_public_weights():
    with torch.device("meta"):
        whole, without = BNInception().state_dict(), BNInception(num_classes=0).state_dict()
    found = [(name, list(value.shape)) for name, value in whole.items()]
    assert found == list(GOLDEN["state_dict"].items())
    assert set(whole) - set(without) == {"last_linear.weight", "last_linear.bias"}


def test_features_are_those_of_the_oracle(maps):
    assert list(maps.shape) == GOLDEN["feature_shape"]
    average, largest = maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))
    for found, key in (
        (average[:, :16], "gap_first16"),
        (largest[:, :16], "gmp_first16"),
        (average.sum(dim=1), "gap_sum"),
        (largest.sum(dim=1), "gmp_sum"),
    ):
        expected = torch.tensor(GOLDEN[key], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_scores_are_the_classifier_of_the_averaged_features(network, images, maps):
    expected = maps[:1].mean(dim=(2, 3)) @ network.last_linear.weight.T + network.last_linear.bias
    with torch.no_grad():
        torch.testing.assert_close(network(images[:1]), expected)


def test_images_of_any_size_fit_through():
    # At 240 and at 40 pixels a block that halves gets an odd map.
    with torch.device("meta"):
        network = BNInception(num_classes=0).eval()
        for pixels, side in [(227, 7), (256, 8), (240, 8), (65, 2), (40, 2), (32, 1)]:
            maps = network(torch.empty(1, 3, pixels, pixels + 32))
            assert maps.shape == (1, 1024, side, side + 1)
