"""Pixels become what each network was trained on, whatever form they come in."""

import pytest
import torch

from weiss.backbones import BNInception, InputSpec, ResNet, SmallNetwork
from weiss.backbones.trunk import InputConversion

PIXELS = torch.randint(256, (2, 3, 5, 4), dtype=torch.uint8)


def converted(spec, images):
    return InputConversion(spec).double()(images)


def test_torchvision_networks_see_standardised_rgb():
    found = converted(ResNet.input, PIXELS)
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        expected = (PIXELS[:, channel].double() / 255 - mean) / std
        torch.testing.assert_close(found[:, channel], expected, rtol=1e-6, atol=1e-6)


def test_bn_inception_sees_blue_first_less_the_mean():
    found = converted(BNInception.input, PIXELS)
    red, green, blue = PIXELS.double().unbind(1)
    expected = torch.stack([blue - 104, green - 117, red - 128], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_grey_becomes_colour_by_repetition():
    grey = PIXELS[:, :1]
    for spec in (BNInception.input, ResNet.input):
        torch.testing.assert_close(converted(spec, grey), converted(spec, grey.repeat(1, 3, 1, 1)))


def test_colour_becomes_grey_as_in_pillow():
    from PIL import Image

    found = converted(SmallNetwork.input, PIXELS)
    for index, image in enumerate(PIXELS):
        grey = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        expected = torch.tensor(list(grey.tobytes()), dtype=torch.float64).view(5, 4)
        difference = found[index, 0] * 127.5 + 127.5 - expected
        assert difference.abs().max() < 1  # Pillow rounds to bytes


def test_vectors_are_handed_on():
    vectors = torch.randn(3, 7).double()
    assert torch.equal(converted(InputSpec.vectors(7), vectors), vectors)


def test_the_conversion_is_not_part_of_the_weights():
    assert InputConversion(ResNet.input).state_dict() == {}


def test_channels_last_stays_channels_last():
    images = PIXELS.to(memory_format=torch.channels_last)
    for spec in (BNInception.input, ResNet.input):
        out = InputConversion(spec)(images)
        assert out.is_contiguous(memory_format=torch.channels_last)


IMAGES, VECTORS = ResNet.input, InputSpec.vectors(7)
BAD = {
    "array": (IMAGES, PIXELS.numpy(), TypeError, "must be a torch.Tensor of images .* got ndarray"),
    "one image": (IMAGES, PIXELS[0], ValueError, r"\(batch, 3 or 1, .* \(3, 5, 4\). Stack a batch"),
    "channels last": (IMAGES, PIXELS.permute(0, 2, 3, 1), ValueError, r"3\). Put channels first"),
    "int64": (IMAGES, PIXELS.long(), TypeError, "or floating point .* got torch.int64.*0..255"),
    "images as vectors": (VECTORS, PIXELS, ValueError, r"must be vectors \(batch, 7\) .* got \(2,"),
    "length": (VECTORS, torch.randn(2, 8), ValueError, r"got \(2, 8\). Build .*num_features=8"),
    "vectors as images": (IMAGES, torch.randn(2, 3), ValueError, r"must be images .* got \(2, 3\)"),
}


@pytest.mark.parametrize(("spec", "given", "error", "message"), BAD.values(), ids=BAD)
def test_a_bad_batch_is_refused(spec, given, error, message):
    with pytest.raises(error, match=message):
        converted(spec, given)


def test_a_spec_that_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match=r"mean and std must hold one number a channel, 1,"):
        InputSpec(channels=1)
    with pytest.raises(ValueError, match=r"channels must be 1 \(grey\) or 3 .* got 4"):
        InputSpec(channels=4, mean=(0.0,) * 4, std=(1.0,) * 4)
