"""Networks of timm as they are built for real, from random weights; and timm missing or broken."""

import copy
import sys

import pytest
import torch

from weiss.backbones import TimmNetwork, make_backbone

CNN, VIT, WINDOWED = "mobilenetv3_small_050", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"


@pytest.fixture(scope="module")
def timm(torchvision):
    import timm

    return timm


def backbone(name, size=6, **arguments):
    torch.manual_seed(0)
    return make_backbone(f"timm:{name}", size, weights="scratch", **arguments)


def images(size=64):
    return torch.randint(256, (2, 3, size, size), dtype=torch.uint8)


CASES = [
    (CNN, "own", {}),
    (CNN, "avg+max", {}),
    (VIT, "own", {"img_size": 64}),
    (VIT, "gem", {"img_size": 64}),
    (WINDOWED, "max", {"img_size": 64, "window_size": 2, "depths": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize(("name", "pooling", "arguments"), CASES)
def test_a_network_of_timm_keeps_the_contract(timm, name, pooling, arguments):
    model = backbone(name, pooling=pooling, **arguments)
    if name == WINDOWED:  # channels last
        assert model.trunk(torch.randn(2, 3, 64, 64)).shape == (2, 768, 2, 2)
    out = model.train()(images())
    assert out.shape == (2, 6)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(2), rtol=0, atol=1e-5)
    out.std(dim=0).sum().backward()
    missing = [key for key, p in model.named_parameters() if p.grad is None]
    assert not missing


def test_mean_std_and_size_are_timms(timm):
    spec = backbone(VIT).input
    assert (spec.size, spec.resize) == (224, 248)
    assert spec.mean == spec.std == (0.5, 0.5, 0.5)
    assert backbone(CNN).input.mean == (0.485, 0.456, 0.406)
    assert backbone(VIT, img_size=64).input.size == 64


@pytest.mark.parametrize("pooling", ["own", "avg"])
def test_its_own_pooling_is_timms_output_and_other_pooling_leaves_out_the_class_token(
    timm, pooling
):
    model = backbone(VIT, img_size=64, pooling=pooling).eval()
    pixels = images()
    converted = (pixels / 255 - 0.5) / 0.5
    with torch.no_grad():
        if pooling == "own":
            expected = model.trunk.network(converted)
        else:
            tokens = model.trunk.network.forward_features(converted)
            assert tokens.shape == (2, 17, 192)
            expected = tokens[:, 1:].mean(dim=1)
        torch.testing.assert_close(model.features(pixels), expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_of_timm_freezes_too(timm):
    model = backbone(CNN, freeze_bn="all")
    before = copy.deepcopy(model.trunk.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    model.train()(images()).std(dim=0).sum().backward()
    optimizer.step()
    after = model.trunk.state_dict()
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert {key for key in before if ".bn" in key} == same


@pytest.mark.parametrize("name", [CNN, "resnet10t"])
def test_weights_with_classifier_load_from_a_file(timm, name, tmp_path):
    whole = timm.create_model(name)
    torch.save(whole.state_dict(), tmp_path / "a.pth")
    model = make_backbone(f"timm:{name}", 6, weights=tmp_path / "a.pth")
    found = model.trunk.network.state_dict()
    assert len(found) == len(whole.state_dict()) - 2
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in found.items())


def test_imagenet_means_timms_own_weights(timm, monkeypatch):
    asked = []

    def create_model(name, pretrained, **arguments):
        asked.append((name, pretrained))
        return original(name, **arguments)

    original = timm.create_model
    monkeypatch.setattr(timm, "create_model", create_model)
    make_backbone(f"timm:{CNN}", 6, weights="imagenet")
    make_backbone(f"timm:{CNN}", 6, weights="scratch")
    assert asked == [(CNN, True), (CNN, False)]


def test_the_error_for_missing_weights_has_the_remedy(timm, monkeypatch):
    def create_model(name, **arguments):
        raise OSError("We have no connection")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(RuntimeError, match="could not be loaded: We have no .*weights=PATH"):
        TimmNetwork(CNN, pretrained=True)


BAD = {
    "name": ("resnet10tt", {}, ValueError, "got 'resnet10tt'. Did you mean 'resnet10t"),
    "pooling": (CNN, {"pooling": "mean"}, ValueError, "one of 'avg', .*'own' for timm:mobile"),
    "argument": (CNN, {"depht": 3}, TypeError, "does not take these arguments: .*depht"),
    "num_classes": (CNN, {"num_classes": 3}, ValueError, "num_classes must be left to the back"),
    "in_chans": (CNN, {"in_chans": 1}, ValueError, "in_chans must be left .* grey is repeated"),
}


@pytest.mark.parametrize(("name", "arguments", "error", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_built_is_refused(timm, name, arguments, error, message):
    with pytest.raises(error, match=message):
        backbone(name, **arguments)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r'timm must be installed .*pip install "weiss\[timm\]"'):
        backbone(CNN)


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        ("operator torchvision::nms does not exist", ImportError, "torchvision must fit the inst"),
        ("something else", RuntimeError, "^something else$"),
    ],
)
def test_a_torchvision_that_does_not_fit_is_explained(
    monkeypatch, tmp_path, failure, error, message
):
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text(f"raise RuntimeError({failure!r})")
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=message):
        backbone(CNN)
