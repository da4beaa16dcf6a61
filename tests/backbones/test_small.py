import pytest
import torch

from weiss.backbones import SmallNetwork


@pytest.mark.parametrize("pixels", [28, 31, 32, 33, 48])
def test_a_map_has_an_eighth_of_the_pixels_rounded_up(pixels):
    side = -(-pixels // 8)
    assert SmallNetwork()(torch.randn(2, 1, pixels, pixels)).shape == (2, 128, side, side)
    colour = SmallNetwork(channels=3, widths=(8, 16))
    assert colour(torch.randn(2, 3, 32, 32)).shape == (2, colour.num_features, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"channels": 2}, ValueError, r"channels must be 1 \(grey\) or 3 .* got 2"),
        ({"widths": (8, 0)}, ValueError, "every width must be at least 1 .* got 0"),
        ({"widths": ()}, ValueError, "widths must name at least one stage"),
        ({"widths": 8}, TypeError, "widths must be a list with one number a stage"),
    ],
)
def test_bad_sizes_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SmallNetwork(**arguments)


def test_it_stays_small():
    # What two CPU cores do in well under 0.15 s for a batch of 128, forward and backward.
    from torch.utils.flop_counter import FlopCounterMode

    network = SmallNetwork()
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(1, 1, 32, 32))
    assert counter.get_total_flops() < 25e6
    assert sum(p.numel() for p in network.parameters()) < 0.4e6
