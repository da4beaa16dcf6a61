"""Weights are loaded completely, or not at all and with the reason."""

import hashlib
from pathlib import Path

import pytest
import torch
from loopback import Site, serving
from safetensors.torch import save_file
from torch import nn

from weiss._base.downloads import Checksum
from weiss.backbones import BNInception, Embedder, ResNet, SmallNetwork, load_weights, read_weights
from weiss.backbones.weights import _cached_name


def small(seed=0):
    torch.manual_seed(seed)
    network = SmallNetwork(widths=(4, 6))
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    return network


def state(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def saved(tmp_path, weights, name="weights.pth", **options):
    path = tmp_path / name
    if name.endswith("safetensors"):
        save_file(weights, path, **options)
    else:
        torch.save(weights, path, **options)
    return path


def same(network, weights):
    found = network.state_dict()
    return all(
        torch.equal(found[name], value.to(found[name].dtype)) for name, value in weights.items()
    )


FORMS = {
    "safetensors": lambda path, w: saved(path, w, "a.safetensors"),
    "pth": lambda path, w: saved(path, w),
    "before 2020": lambda path, w: saved(path, w, _use_new_zipfile_serialization=False),
    "a misleading name": lambda path, w: saved(path, w, "a.bin").rename(path / "a.safetensors"),
    "state_dict": lambda path, w: saved(path, {"epoch": 3, "state_dict": w}),
    "model in model": lambda path, w: saved(path, {"model": {"state_dict": w}, "lr": 0.1}),
    "parallel": lambda path, w: saved(path, {f"module.{k}": v for k, v in w.items()}),
    "compiled": lambda path, w: saved(path, {f"module._orig_mod.{k}": v for k, v in w.items()}),
    "other wrapper": lambda path, w: saved(
        path, {f"_orig_mod.module.{k}": v for k, v in w.items()}
    ),
    "no counters": lambda path, w: saved(path, {k: v for k, v in w.items() if v.ndim}),
    "classifier": lambda path, w: saved(
        path, w | {"fc.weight": torch.ones(9, 6), "last_linear.bias": torch.ones(9)}
    ),
    "vectors in rows": lambda path, w: saved(
        path, {k: v[None] if v.ndim == 1 else v for k, v in w.items()}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_common_forms_of_the_same_weights_all_load(tmp_path, form):
    weights, network = state(small(1)), small(2)
    assert not same(network, weights)
    load_weights(network, FORMS[form](tmp_path, weights))
    assert same(network, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_precision_is_cast_to_the_precision_of_the_module(tmp_path, dtype):
    weights = {k: v.half() if v.ndim == 4 else v for k, v in state(small(1)).items()}
    network = small(2).to(dtype)
    load_weights(network, saved(tmp_path, weights, "half.safetensors"))
    assert same(network, weights)
    assert {p.dtype for p in network.parameters()} == {dtype}


def classifying(num_classes):
    network = nn.Sequential()
    network.add_module("body", nn.Linear(3, 5))
    if num_classes:
        network.add_module("fc", nn.Linear(5, num_classes))
    return network


def test_a_classifier_is_loaded_where_there_is_one(tmp_path):
    one, other, headless = classifying(9), classifying(9), classifying(0)
    path = saved(tmp_path, one.state_dict())
    load_weights(other, path)
    assert same(other, one.state_dict())
    load_weights(headless, path)
    assert same(headless, one.body.state_dict(prefix="body."))
    with pytest.raises(ValueError, match=r"of another shape.*fc.weight is \(9, 5\), must be \(7"):
        load_weights(classifying(7), path)


def of_shapes(network):
    """Weights of these names and shapes that take no memory."""
    return {k: torch.zeros((), dtype=v.dtype).expand(v.shape) for k, v in state(network).items()}


def test_weights_of_another_network_are_refused_by_their_keys(tmp_path):
    with torch.device("meta"):
        given, network = ResNet(18), BNInception(num_classes=0)
    path = saved(tmp_path, of_shapes(given), "resnet18.pth")
    with pytest.raises(ValueError, match="weights must be those of BN-Inception, 483 ") as caught:
        load_weights(network, path)
    text = str(caught.value)
    assert "resnet18.pth" in text
    assert "414 missing (conv1_7x7_s2.weight, conv1_7x7_s2.bias, conv1_7x7_s2_bn.weight" in text
    assert "and 411 more)" in text
    assert "120 unexpected (conv1.weight, bn1.weight, bn1.bias and 117 more)" in text


def test_weights_of_another_depth_are_refused_by_their_shapes(tmp_path):
    with torch.device("meta"):
        given, network = ResNet(34), ResNet(50)
    path = saved(tmp_path, of_shapes(given))
    with pytest.raises(ValueError, match="85 missing .*32 of another shape") as caught:
        load_weights(network, path)
    assert "layer1.0.conv1.weight is (64, 64, 3, 3), must be (64, 64, 1, 1)" in str(caught.value)


def test_whole_numbers_are_no_weights(tmp_path):
    weights = state(small()) | {"stem.0.weight": torch.ones(4, 1, 5, 5, dtype=torch.int8)}
    with pytest.raises(ValueError, match=r"stem.0.weight is \(4, 1, 5, 5\) of whole numbers"):
        load_weights(small(), saved(tmp_path, weights))


def test_nothing_is_loaded_when_something_does_not_fit(tmp_path):
    network = small(2)
    before = state(network)
    weights = state(small(1))
    last = list(weights)[-2]
    for bad in (
        {k: v for k, v in weights.items() if k != last},
        weights | {last: torch.ones(99)},
        weights | {last: torch.full_like(weights[last], float("nan"))},
    ):
        with pytest.raises(ValueError, match=last):
            load_weights(network, saved(tmp_path, bad))
        assert same(network, before)


STATED = "ResNet-50 {}: the stride of each stage sits on the first 1x1 convolution"


@pytest.mark.parametrize(("stated", "built"), [("v1", "v1.5"), ("v1.5", "v1")])
def test_resnet_weights_of_the_other_version_are_refused(tmp_path, stated, built):
    with torch.device("meta"):
        network = ResNet(50, built)
    arch = {"arch": STATED.format(stated)}
    path = saved(tmp_path, {"a": torch.ones(1)}, "a.safetensors", metadata=arch)
    name = {"v1": "resnet50_v1", "v1.5": "resnet50"}[stated]
    with pytest.raises(ValueError, match=f"must be those of ResNet-50 {built};.*agree.*'{name}'"):
        load_weights(network, path)


@pytest.mark.parametrize("stated", ["ResNet-18 v1", "ResNet-18 v1.5", "resnet18", ""])
def test_resnet_weights_of_one_version_load_into_networks_that_have_only_one(tmp_path, stated):
    weights, network = state(small(1)), small(2)
    network.architecture = "ResNet-18"
    load_weights(network, saved(tmp_path, weights, "a.safetensors", metadata={"arch": stated}))
    assert same(network, weights)


def written(path, content):
    path.write_bytes(content)
    return path


def cut(path):
    content = path.read_bytes()
    return written(path, content[: len(content) * 3 // 4])


class Harmful:
    """Unpickling this would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


BAD = {
    "missing": (lambda p: p / "a.pth", FileNotFoundError, "an existing file; there is no"),
    "folder": (lambda p: p, ValueError, "is a folder. Pass a file inside it"),
    "empty": (lambda p: written(p / "a.pth", b""), ValueError, "a.pth has zero bytes"),
    "web page": (
        lambda p: written(p / "a.pth", b"\n<!DOCTYPE html><html>Log in</html>"),
        ValueError,
        "a.pth is a web page",
    ),
    "pointer": (
        lambda p: written(p / "a.pth", b"version https://git-lfs.github.com/spec/v1\noid sha256:0"),
        ValueError,
        "a.pth is a Git LFS pointer",
    ),
    "picture": (
        lambda p: written(p / "a.pth", b"\x89PNG\r\n\x1a\n0000"),
        ValueError,
        "a.pth is neither",
    ),
    "cut safetensors": (
        lambda p: cut(saved(p, state(small()), "a.safetensors")),
        ValueError,
        "a.safetensors is damaged or cut off",
    ),
    "cut pth": (lambda p: cut(saved(p, state(small()))), ValueError, "is damaged or cut off"),
    "cut old pth": (
        lambda p: cut(saved(p, state(small()), _use_new_zipfile_serialization=False)),
        ValueError,
        "is damaged or cut off",
    ),
    "cut pickle": (lambda p: written(p / "a.pth", b"\x80\x02}q"), ValueError, "damaged or cut off"),
    "code": (
        lambda p: saved(p, {"a": Harmful(p / "was here")}),
        ValueError,
        "also holds Python objects or a program.* would run code",
    ),
    "a module": (lambda p: saved(p, small()), ValueError, "also holds Python objects"),
    "a list": (lambda p: saved(p, [torch.ones(2)]), ValueError, "tensors by name; .* holds list"),
    "nothing": (lambda p: saved(p, {}), ValueError, "holds an empty one"),
    "numbers": (lambda p: saved(p, {"lr": 0.1}), ValueError, "these are no tensors: lr"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_file_that_holds_no_weights_is_refused_by_name(tmp_path, mistake):
    make, error, message = BAD[mistake]
    path = make(tmp_path)
    with pytest.raises(error, match=message) as caught:
        load_weights(nn.Linear(2, 2), path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "was here").exists()


def test_the_metadata_of_a_file_are_read_too(tmp_path):
    path = saved(tmp_path, {"a": torch.ones(2)}, "a.safetensors", metadata={"arch": "mine"})
    weights, metadata = read_weights(path)
    assert list(weights) == ["a"]
    assert metadata == {"arch": "mine"}


def test_weights_are_downloaded_once_and_verified(tmp_path):
    weights, network = state(small(1)), small(2)
    before = state(network)
    path = saved(tmp_path, weights)
    checksum = Checksum("sha256", hashlib.sha256(path.read_bytes()).hexdigest(), "this test")
    other = Checksum("sha256", "01234567", "the file's name")
    with serving(Site(path.read_bytes(), name="small-01.pth")) as site:
        with pytest.raises(ValueError, match="sha256 01234567, published by the file's name"):
            load_weights(network, site.url, checksum=other, cache=tmp_path / "c")
        assert same(network, before)
        for _ in range(2):
            load_weights(network, site.url, checksum=checksum, cache=tmp_path / "c")
            assert same(network, weights)
        assert len(site.asked) == 2
        with pytest.raises(OSError, match=f"pretrained weights must be fetched from {site.url}x"):
            load_weights(small(), f"{site.url}x", cache=tmp_path / "c")
    cached = tmp_path / "c" / site.url.removeprefix("http://").replace(":", "/")
    assert cached.read_bytes() == path.read_bytes()


def test_different_addresses_have_different_places_inside_the_cache(tmp_path, monkeypatch):
    placed = []

    def fetch(url, target, **_):
        placed.append(target)
        return saved(tmp_path, state(small()))

    monkeypatch.setattr("weiss._base.downloads.fetch", fetch)
    addresses = [
        "https://a.org/weights.pth",
        "https://b.org/weights.pth",
        "https://a.org/1/weights.pth",
        "https://a.org/get?file=1",
        "https://a.org/get?file=2",
        "https://a.org/../../../etc/passwd",
        "https://a.org/",
    ]
    for address in addresses:
        load_weights(small(), address, cache=tmp_path / "c")
    assert len(set(placed)) == len(addresses)
    for path in placed:
        assert ".." not in path.parts
        assert path.is_relative_to(tmp_path / "c")


def test_a_bad_download_is_not_found_in_the_cache_again(tmp_path):
    page, weights = b"<html>try later</html>", small(1)
    good = saved(tmp_path, state(weights)).read_bytes()
    with serving(Site(page, name="w.pth")) as site:
        network = small(2)
        with pytest.raises(ValueError, match="is a web page.*It came from http.*was deleted"):
            load_weights(network, site.url, cache=tmp_path / "cache")
        site.body, site.etag = good, '"two"'
        load_weights(network, site.url, cache=tmp_path / "cache")
    assert same(network, state(weights))


def test_the_weights_of_an_embedder_start_another_trunk(tmp_path):
    model = Embedder(small(1), 8)
    path = saved(tmp_path, model.state_dict())
    trunk = small(2)
    load_weights(trunk, path)
    assert same(trunk, state(model.trunk))


def test_a_cached_name_holds_no_password_and_no_way_out(tmp_path):
    for address in ("http://user:secret@host:80/a/../x.pth", "http://../../etc/x.pth"):
        name = _cached_name(address)
        assert "secret" not in str(name)
        assert ".." not in name.parts
