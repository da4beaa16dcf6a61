"""Devices and precisions: what this machine does not have is refused, and auto is resolved."""

import pytest
import torch

from weiss._base.devices import autocast, refuse_absent_device


@pytest.mark.parametrize("asked", ["cuda:x", "cuda:-1", "cuda:", "cuda:999", "cpu:1"])
def test_a_device_that_is_not_there_is_refused(asked):
    with pytest.raises(ValueError, match=f"device must be a device of this machine; '{asked}' is"):
        refuse_absent_device(asked, "device")


def test_a_precision_that_is_left_open_is_resolved():
    with autocast("auto", torch.device("cpu"))():
        assert not torch.is_autocast_enabled("cpu")
    with autocast("bf16", torch.device("cpu"))():
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
