"""Weights are loaded completely, or not at all and with the reason."""

import hashlib
import os
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from loopback import Site, serving
from safetensors.torch import save_file
from torch import nn

from weiss._base.downloads import Checksum
from weiss.backbones import BNInception, ResNet, SmallNetwork, load_weights


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


def before_2020(tmp_path, weights):
    """Save weights in the older form of PyTorch files."""
    return saved(tmp_path, weights, _use_new_zipfile_serialization=False)


def same(network, weights):
    found = network.state_dict()
    return all(
        torch.equal(found[name], value.to(found[name].dtype)) for name, value in weights.items()
    )


def prefixed(prefix, weights):
    return {f"{prefix}{name}": value for name, value in weights.items()}


CONTENTS = {
    "state_dict": lambda w: {"epoch": 3, "state_dict": w},
    "model in model": lambda w: {"model": {"state_dict": w}, "lr": 0.1},
    "parallel": lambda w: prefixed("module.", w),
    "compiled": lambda w: prefixed("module._orig_mod.", w),
    "other wrapper": lambda w: prefixed("_orig_mod.module.", w),
    "embedder": lambda w: {**prefixed("trunk.", w), "head.embedding.weight": torch.ones(8, 6)},
    "no counters": lambda w: {k: v for k, v in w.items() if v.ndim},
    "classifier": lambda w: w | {"fc.weight": torch.ones(9, 6), "last_linear.bias": torch.ones(9)},
    "vectors in rows": lambda w: {k: v[None] if v.ndim == 1 else v for k, v in w.items()},
}


def with_header_like_a_web_page(path, weights):
    """A safetensors file whose first eight bytes, the length of its header, begin with " <"."""
    header = 0
    for padding in (0, 0x3C20):
        text = {"padding": "a" * (padding - header)}
        file = saved(path, weights, "a.safetensors", metadata=text)
        header = int.from_bytes(file.read_bytes()[:8], "little")
    assert file.read_bytes().startswith(b" <")
    return file


FORMS = {
    "safetensors": lambda path, w: saved(path, w, "a.safetensors"),
    "like a web page": with_header_like_a_web_page,
    "pth": saved,
    "before 2020": before_2020,
    "a misleading name": lambda path, w: saved(path, w, "a.bin").rename(path / "a.safetensors"),
    **{name: lambda path, w, f=form: saved(path, f(w)) for name, form in CONTENTS.items()},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_common_forms_of_the_same_weights_all_load(tmp_path, form):
    weights, network = state(small(1)), small(2)
    assert not same(network, weights)
    load_weights(network, form(tmp_path, weights))
    assert same(network, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stored", [torch.float16, torch.float8_e4m3fn])
def test_low_precision_is_cast_to_the_precision_of_the_module(tmp_path, stored, dtype):
    weights = {k: v.to(stored) if v.ndim == 4 else v for k, v in state(small(1)).items()}
    network = small(2).to(dtype)
    load_weights(network, saved(tmp_path, weights, "half.safetensors"))
    assert same(network, weights)
    assert {p.dtype for p in network.parameters()} == {dtype}


def classifying(num_classes):
    layers = {"body": nn.Linear(3, 5), "fc": nn.Linear(5, num_classes or 1)}
    return nn.Sequential(OrderedDict(list(layers.items())[: 2 if num_classes else 1]))


def test_a_classifier_is_loaded_where_there_is_one(tmp_path):
    one, other, headless = classifying(9), classifying(9), classifying(0)
    path = saved(tmp_path, one.state_dict())
    load_weights(other, path)
    assert same(other, one.state_dict())
    load_weights(headless, path)
    assert same(headless, one.body.state_dict(prefix="body."))
    with pytest.raises(ValueError, match=r"of another shape.*fc.weight is \(9, 5\), must be \(7"):
        load_weights(classifying(7), path)


def of_proxy_anchor(weights):
    """A checkpoint as ProxyAnchor's program saves it: with its classifier and embedding layer."""
    more = {"fc.weight": torch.zeros(10, 6), "fc.bias": torch.zeros(10)}
    more |= {"embedding.weight": torch.ones(512, 6), "embedding.bias": torch.ones(512)}
    return {"model_state_dict": prefixed("model.", {**weights, **more})}


def test_the_embedding_layer_of_another_program_is_left_out_with_a_word(tmp_path):
    path, network = saved(tmp_path, of_proxy_anchor(state(small(1)))), small()
    with pytest.warns(UserWarning, match=r"embedding\.weight \(512, 6\).* trunk alone is loaded"):
        load_weights(network, path)
    assert same(network, state(small(1)))


def test_an_embedding_layer_is_no_excuse_for_another_network(tmp_path):
    weights = of_proxy_anchor({"conv.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"1 unexpected \(conv\.weight\)"):
        load_weights(small(), saved(tmp_path, weights))


def of_shapes(network):
    """Weights of these names and shapes that take no memory."""
    return {k: torch.zeros((), dtype=v.dtype).expand(v.shape) for k, v in state(network).items()}


OTHERS = [
    (
        lambda: (ResNet(18), BNInception(num_classes=0)),
        (
            "weights must be those of BN-Inception, 483 tensors; of the 120 in ",
            "414 missing (conv1_7x7_s2.weight, conv1_7x7_s2.bias, conv1_7x7_s2_bn.weight and 411",
            "120 unexpected (conv1.weight, bn1.weight, bn1.bias and 117 more)",
        ),
    ),
    (
        lambda: (ResNet(34), ResNet(50)),
        (
            "85 missing (",
            "32 of another shape",
            "layer1.0.conv1.weight is (64, 64, 3, 3), must be (64, 64, 1, 1)",
        ),
    ),
]


@pytest.mark.parametrize(("networks", "facts"), OTHERS)
def test_weights_of_another_network_are_refused_by_names_and_shapes(tmp_path, networks, facts):
    with torch.device("meta"):
        given, network = networks()
    path = saved(tmp_path, of_shapes(given))
    with pytest.raises(ValueError, match=path.name) as caught:
        load_weights(network, path)
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def test_nothing_is_loaded_when_something_does_not_fit(tmp_path):
    network = small(2).half()
    before = state(network)
    weights = state(small(1))
    last = list(weights)[-2]
    for bad in (
        {k: v for k, v in weights.items() if k != last},
        weights | {last: torch.ones(99)},
        weights | {last: torch.full_like(weights[last], float("nan"))},
        weights | {last: torch.full_like(weights[last], 1e6)},  # infinite in half precision
        weights | {last: torch.ones_like(weights[last], dtype=torch.int8)},  # whole numbers
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


def test_a_resnet_without_a_name_is_known_by_its_strides(tmp_path):
    """Such as that of timm, which is v1.5."""
    network = ResNet(50, "v1.5", num_classes=0)
    network.architecture = ""
    path = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), path, {"arch": "ResNet-50 v1: converted"})
    with pytest.raises(ValueError, match=r"must be those of ResNet-50 v1\.5.*'resnet50_v1'"):
        load_weights(network, path)
    save_file(network.state_dict(), path, {"arch": "ResNet-50 v1.5"})
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


def forgetting(path):
    """Change a file of before 2020 so that it names a tensor it does not have."""
    content = path.read_bytes()
    key = re.findall(rb"\d{9,}", content)[-1]
    at = content.rindex(key)
    return written(path, content[:at] + b"0" * len(key) + content[at + len(key) :])


def inside_itself():
    content = {}
    content["state_dict"] = content
    return content


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0"
CUT, OTHERS_INSIDE = "is damaged or cut off", "these are no dense tensors: "
BAD = {
    "missing": (lambda p: p / "a.pth", "an existing file; there is no"),
    "folder": (lambda p: p, "is a folder. Pass a file inside it"),
    "empty": (lambda p: written(p / "a.pth", b""), "a.pth has zero bytes"),
    "web page": (lambda p: written(p / "a.pth", b"\n<!DOCTYPE"), "a.pth is a web page"),
    "pointer": (lambda p: written(p / "a.pth", LFS), "a.pth is a Git LFS pointer"),
    "picture": (lambda p: written(p / "a.pth", b"\x89PNG\r\n"), "a.pth is neither"),
    "cut safetensors": (lambda p: cut(saved(p, state(small()), "a.safetensors")), CUT),
    "cut pth": (lambda p: cut(saved(p, state(small()))), CUT),
    "cut old pth": (lambda p: cut(before_2020(p, state(small()))), CUT),
    "forgetful": (lambda p: forgetting(before_2020(p, state(small()))), CUT),
    "cut pickle": (lambda p: written(p / "a.pth", b"\x80\x02}q"), CUT),
    "a module": (lambda p: saved(p, small()), "holds code, or .*SmallNetwork"),
    "a list": (lambda p: saved(p, [torch.ones(2)]), "tensors by name; .* holds list"),
    "nothing": (lambda p: saved(p, {}), "holds an empty one"),
    "numbers": (lambda p: saved(p, {"lr": 0.1}), f"{OTHERS_INSIDE}lr"),
    "itself": (lambda p: saved(p, inside_itself()), f"{OTHERS_INSIDE}state_dict"),
    "sparse": (lambda p: saved(p, {"weight": torch.eye(2).to_sparse()}), f"{OTHERS_INSIDE}weight"),
    "no numbers": (lambda p: saved(p, {"a": torch.eye(2, device="meta")}), f"{OTHERS_INSIDE}a"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_a_file_that_holds_no_weights_is_refused_by_name(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_weights(nn.Linear(2, 2), path)
    assert str(path) in str(caught.value)


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
        with pytest.raises(OSError, match=f"be fetched from {site.url}x.*--weights FILE"):
            load_weights(small(), f"{site.url}x", cache=tmp_path / "c")
    (cached,) = (tmp_path / "c").rglob("*-small-01.pth")
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
        "https://a.org:1/weights.pth",
        "https://a.org/a b.pth",
        "https://a.org/a_b.pth",
        "https://a.org/get?file=1",
        "https://a.org/get?file=2",
        "https://a.org/../../../etc/passwd",
        "https://a.org/",
        "https://a.org/weights",
        "http://user:secret@host:80/a/../x.pth",
        "http://../../etc/x.pth",
    ]
    for address in addresses:
        load_weights(small(), address, cache=tmp_path / "c")
    assert len(set(placed)) == len(addresses)
    for path in placed:
        assert ".." not in path.parts
        assert "secret" not in str(path)
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


class Harmful:
    """Unpickling this calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", ["posix.system", "getattr"])
def test_a_file_with_code_is_called_so_and_its_code_does_not_run(tmp_path, name, old):
    ran, path = tmp_path / "ran", tmp_path / "evil.pth"
    code = {"posix.system": Harmful(os.system, f"touch {ran}"), "getattr": Harmful(Path.touch, ran)}
    content = {"a": torch.ones(2), "b": code[name]}
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    with pytest.raises(ValueError, match=f"{name}.*was not run. Ask for a safetens") as caught:
        load_weights(small(), path)
    assert str(path) in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert "damaged" not in str(caught.value)
    assert caught.value.__cause__ is None  # torch's advice to run it anyway is not shown
    assert not ran.exists()
    torch.load(path, weights_only=False)  # it would have
    assert ran.exists()
