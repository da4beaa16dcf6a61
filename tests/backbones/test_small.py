import pytest
import torch

from weiss.backbones import SmallNetwork


def test_the_map_of_a_glyph_has_four_by_four_cells():
    assert SmallNetwork()(torch.randn(2, 1, 32, 32)).shape == (2, 128, 4, 4)


@pytest.mark.parametrize("pixels", [28, 31, 33, 48])
def test_other_sizes_work_too(pixels):
    side = -(-pixels // 8)
    assert SmallNetwork()(torch.randn(2, 1, pixels, pixels)).shape == (2, 128, side, side)


def test_it_stays_small():
    # What two CPU cores do in well under 0.15 s for a batch of 128, forward and backward.
    from torch.utils.flop_counter import FlopCounterMode

    network = SmallNetwork()
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(1, 1, 32, 32))
    assert counter.get_total_flops() < 25e6
    assert sum(p.numel() for p in network.parameters()) < 0.4e6


def test_widths_set_the_features():
    network = SmallNetwork(channels=3, widths=(8, 16))
    assert network.num_features == 16
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 16, 8, 8)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match=r"channels must be 1 \(grey\) or 3 .* got 2"):
        SmallNetwork(channels=2)
    with pytest.raises(ValueError, match="every width must be at least 1 .* got 0"):
        SmallNetwork(widths=(8, 0))
    with pytest.raises(ValueError, match="widths must name at least one stage"):
        SmallNetwork(widths=())
