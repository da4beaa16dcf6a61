"""Laws of every backbone, and what make_backbone refuses."""

import copy
from functools import cache

import pytest
import torch

from weiss.backbones import BACKBONES, Embedder, SmallNetwork, make_backbone

PHOTOGRAPHIC = ["bn_inception"] + [name for name in BACKBONES if name.startswith("resnet")]
# One of each kind; the other depths share all their code with these.
A_FEW = ["bn_inception", "resnet18", "resnet50_v1", "small", "features"]
SIZE = 10


def every_backbone(names=tuple(BACKBONES)):
    return pytest.mark.parametrize("name", names)


def build(name):
    arguments = {"num_features": 20} if name == "features" else {}
    return make_backbone(name, SIZE, weights="scratch", **arguments)


@cache
def built(name):
    torch.manual_seed(0)
    return build(name)


def a_model(name):
    return copy.deepcopy(built(name))


def a_batch(model, batch=4):
    generator = torch.Generator().manual_seed(1)
    if model.input.kind == "vectors":
        return torch.randn(batch, model.input.channels, generator=generator)
    # Small, for speed; what the network was made for is not needed to see that it runs.
    shape = (batch, model.input.channels, 40, 36)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


@every_backbone()
def test_an_entry_describes_what_is_built(name):
    entry = BACKBONES[name]
    with torch.device("meta"):  # no memory, no random numbers
        model = build(name)
        out = model.train()(torch.empty(4, 20) if name == "features" else torch.empty(4, 3, 40, 36))
    assert isinstance(model, Embedder)
    assert entry.title
    assert out.shape == (4, SIZE)
    assert model.embedding_size == SIZE
    assert entry.needs_weights == (name in PHOTOGRAPHIC)
    assert not any(key.startswith(("fc.", "last_linear.")) for key in model.trunk.state_dict())
    if name in PHOTOGRAPHIC:  # as in the paper
        assert type(model.pooling).__name__ == "AverageMaxPooling"
    if name.startswith("resnet"):
        depth, _, v1 = name.removeprefix("resnet").partition("_")
        version = {True: "", False: " v1" if v1 else " v1.5"}[int(depth) < 50]
        assert model.architecture == f"ResNet-{depth}{version}"


@every_backbone(A_FEW)
def test_embeddings_have_unit_length_and_gradients_reach_every_parameter(name):
    model = a_model(name)
    images = a_batch(model)
    outputs = []
    for training in (True, False):
        with torch.set_grad_enabled(not training):
            out = model.train(training)(images)
        assert out.shape == (4, SIZE)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out.norm(dim=1), torch.ones(4), rtol=0, atol=1e-5)
        outputs.append(out)
    assert torch.equal(*outputs) == (name == "features")
    assert out.std(dim=0).max() > 1e-4  # images differ
    # In evaluation: batch statistics would cancel the biases of BN-Inception's convolutions.
    out.std(dim=0).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


@pytest.mark.slow
@every_backbone(["bn_inception", "resnet18", "small", "features"])
def test_the_whole_model_is_one_graph(name):
    model = a_model(name).eval()
    images = a_batch(model)
    with torch.no_grad():
        whole = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(whole(images), model(images))


def test_options_arrive():
    model = make_backbone(
        "small", 7, pooling="gem", head="relu", freeze_bn="statistics", channels=3, widths=(4, 6)
    )
    assert model.input.channels == 3
    assert model.trunk.num_features == 6
    assert model.head.hidden.weight.shape == (6, 6)
    assert model.pooling.p.item() == 3
    assert model.freeze_bn == "statistics"
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)


def test_torchvision_gives_the_same_addresses(torchvision):
    for depth in (18, 34, 50, 101):
        theirs = getattr(torchvision.models, f"ResNet{depth}_Weights").IMAGENET1K_V1
        assert BACKBONES[f"resnet{depth}"].imagenet == theirs.url


def test_weights_from_a_file_arrive_in_the_trunk(tmp_path):
    network = SmallNetwork()
    torch.save(network.state_dict(), tmp_path / "small.pt")
    model = make_backbone("small", 5, weights=tmp_path / "small.pt")
    for name, value in network.state_dict().items():
        assert torch.equal(model.trunk.state_dict()[name], value)


@every_backbone([name for name in PHOTOGRAPHIC if BACKBONES[name].imagenet])
def test_imagenet_is_a_download_with_the_checksum_in_its_name(name, tmp_path, monkeypatch):
    def fetch(url, target, *, checksum, what):
        assert url == BACKBONES[name].imagenet
        assert url.endswith(f"-{checksum.value}.pth")
        assert target == tmp_path / url.partition("://")[2]
        raise EOFError(what)

    monkeypatch.setattr("weiss._base.downloads.fetch", fetch)
    with torch.device("meta"), pytest.raises(EOFError, match="pretrained weights"):
        make_backbone(name, weights="imagenet", cache=tmp_path)


@every_backbone(["bn_inception", "resnet50_v1"])
def test_weights_of_a_network_for_photographs_must_be_given(name):
    with pytest.raises(ValueError, match=f"weights must be given for '{name}'") as caught:
        make_backbone(name)
    text = str(caught.value)
    assert all(choice in text for choice in ("a file", "http(s) address", "'scratch'"))
    assert ("'imagenet'" in text) == bool(BACKBONES[name].imagenet)


IMAGENET = {"weights": "imagenet"}
BAD = [
    ("resnet5", {}, ValueError, "timm:NAME.*got 'resnet5'.*Did you mean 'resnet50'"),
    (None, {}, ValueError, "name must be one of .*; got None"),
    ("timm:resnet10t", {}, ValueError, "given for 'timm:resnet10t'.*'imagenet' .timm's own"),
    ("resnet50_v1", IMAGENET, ValueError, "there is none for 'resnet50_v1'. Pass a fi.*'scratch'"),
    ("resnet18", {"weights": "no.pth"}, FileNotFoundError, "existing file; there is no no.pth"),
    ("small", {"chanels": 3}, TypeError, "'small' has no argument 'chanels'. .* 'channels'"),
    ("resnet18", {"weights": "scratch", "depth": 3}, TypeError, "no argument 'depth'"),
    ("features", {}, TypeError, "num_features must be given for 'features'"),
    ("features", {"num_features": 0}, ValueError, "num_features must be at least 1"),
    ("features", {"num_features": 3, "weights": "a.pth"}, ValueError, "None for 'features': there"),
    ("features", {"num_features": 3, "pooling": "avg"}, ValueError, "None .* returns vectors"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), BAD)
def test_what_cannot_be_built_is_refused(name, arguments, error, message):
    with pytest.raises(error, match=message):
        make_backbone(name, **arguments)
