"""ResNets against torchvision's, and where the stride sits."""

import pytest
import torch

from weiss.backbones import ResNet


def shapes(network):
    return [(name, value.shape) for name, value in network.state_dict().items()]


@pytest.mark.parametrize(
    ("depth", "version"), [(18, "v1"), (34, "v1.5"), (50, "v1"), (50, "v1.5"), (101, "v1.5")]
)
def test_names_shapes_and_their_order_are_torchvisions(torchvision, depth, version):
    with torch.device("meta"):
        theirs = getattr(torchvision.models, f"resnet{depth}")()
        assert shapes(ResNet(depth, version)) == shapes(theirs)
        without = {name for name, _ in shapes(ResNet(depth, version, num_classes=0))}
    assert {name for name, _ in shapes(theirs)} - without == {"fc.weight", "fc.bias"}


def pair(torchvision, depth, version):
    """Our network and torchvision's, with the same random weights and statistics."""
    torch.manual_seed(depth)
    with torch.device("meta"):
        theirs, ours = getattr(torchvision.models, f"resnet{depth}")(), ResNet(depth, version)
    theirs = theirs.double().eval().to_empty(device="cpu")
    for value in theirs.state_dict().values():
        if value.ndim == 4:
            bound = (6 / value[0].numel()) ** 0.5
            value.uniform_(-bound, bound)
        elif value.is_floating_point():
            value.uniform_(0.5, 1.5)
    ours.double().eval().load_state_dict(theirs.state_dict(), assign=True)
    return ours, theirs, torch.randn(1, 3, 43, 40, dtype=torch.float64)


# Other depths differ in their names only, tested above; without bottlenecks v1 is the same network.
@pytest.mark.parametrize(("depth", "version"), [(18, "v1"), (18, "v1.5"), (50, "v1.5")])
def test_v1_5_gives_torchvisions_scores(torchvision, depth, version):
    ours, theirs, images = pair(torchvision, depth, version)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-9, atol=1e-9)


def test_v1_strides_in_the_first_convolution_and_is_another_network(torchvision):
    ours, theirs, images = pair(torchvision, 50, "v1")
    with torch.no_grad():
        v1_5 = theirs(images)
        for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-9, atol=1e-9)
        assert (ours(images) - v1_5).norm() > 0.01 * v1_5.norm()


def test_a_depth_or_version_that_is_none_is_refused():
    with pytest.raises(ValueError, match="depth must be one of 18, 34, 50, 101 .* got 52"):
        ResNet(52)
    with pytest.raises(ValueError, match="version must be one of 'v1', 'v1.5' .* got 'v2'"):
        ResNet(50, "v2")
