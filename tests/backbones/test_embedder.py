"""Laws of the embedder that need only one trunk."""

import copy
import pickle

import pytest
import torch
from torch import nn

from weiss.backbones import POOLINGS, Embedder, InputSpec, ResNet, SmallNetwork, Trunk
from weiss.backbones.trunk import InputConversion, Vectors


def glyphs(batch=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, 1, 32, 32), dtype=torch.uint8, generator=generator)


def small(**arguments):
    torch.manual_seed(0)
    return Embedder(SmallNetwork(widths=(8, 16, 24)), 12, **arguments)


@pytest.mark.parametrize(
    ("pooling", "head"), [*((pooling, "linear") for pooling in POOLINGS), ("avg", "relu")]
)
def test_an_embedding_is_trunk_pooling_head_and_unit_length(pooling, head):
    model = small(pooling=pooling, head=head).eval()
    images = glyphs()
    features = POOLINGS[pooling]()(model.trunk((images.float() - 127.5) / 127.5))
    assert features.shape == (6, model.trunk.num_features)
    torch.testing.assert_close(model.features(images), features)
    last = model.head.embedding
    if head == "relu":  # with a layer of the width of the features in front
        hidden = model.head.hidden
        assert hidden.weight.shape == (24, 24)
        features = (features @ hidden.weight.T + hidden.bias).clamp(min=0)
    raw = features @ last.weight.T + last.bias
    torch.testing.assert_close(model(images), raw / raw.norm(dim=1, keepdim=True))


def test_without_a_head_the_embedding_is_the_averaged_features_of_unit_length():
    model = Embedder(ResNet(18, num_classes=0), pooling="avg", head="none").eval()
    assert (model.embedding_size, list(model.head.parameters())) == (512, [])
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    maps = model.trunk(model.conversion(images)).detach()
    for row, image in zip(model(images).detach(), maps, strict=True):
        pooled = torch.stack([channel.sum() / channel.numel() for channel in image])
        torch.testing.assert_close(row, pooled / pooled.square().sum().sqrt())
    # The usual pooling is that of the trunk, with a head and without.
    for head in ("linear", "none"):
        usual = Embedder(ResNet(18, num_classes=0), head=head).pooling
        assert type(usual).__name__ == "AverageMaxPooling"


def test_a_network_without_a_head_has_the_size_of_its_features():
    assert Embedder(Vectors(7), 7, head="none").embedding_size == 7
    with pytest.raises(ValueError, match="embedding_size must be 7, .* of features.* got 12"):
        Embedder(Vectors(7), 12, head="none")
    assert Embedder(Vectors(7)).embedding_size == 512


def test_heads_start_by_kaiming_with_fan_out_and_without_bias():
    torch.manual_seed(0)
    head = Embedder(Vectors(300), 500, head="relu").head
    for layer, fan_out in ((head.hidden, 300), (head.embedding, 500)):
        assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
        assert not layer.bias.any()


def batch_norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def trained(model, steps=2):
    """Train a little, with weight decay, and return what batch normalisation held before."""
    before = copy.deepcopy([norm.state_dict() for norm in batch_norms(model)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model.train()
        model(glyphs(seed=step)).std(dim=0).sum().backward()
        optimizer.step()
    return before


def moved(model, before, *names):
    return {
        bool((norm.state_dict()[name] != old[name]).any())
        for norm, old in zip(batch_norms(model), before, strict=True)
        for name in names
    }


STATISTICS, AFFINE = ("running_mean", "running_var", "num_batches_tracked"), ("weight", "bias")


@pytest.mark.parametrize(
    ("freeze", "way"),
    [
        ("none", "built"),
        ("statistics", "built"),
        ("all", "built"),
        ("statistics", "set later"),
        ("all", "set later"),
        ("all", "copied"),
        ("statistics", "pickled"),
    ],
)
def test_frozen_batch_norm_stays_frozen(freeze, way):
    model = small(freeze_bn="none" if way == "set later" else freeze)
    if way == "set later":
        trained(model, steps=1)
        model.freeze_batch_norm(freeze)
    elif way == "copied":
        model = copy.deepcopy(model)
    elif way == "pickled":
        model = pickle.loads(pickle.dumps(model))
    else:
        model.train().eval().train()
    before = trained(model)
    assert moved(model, before, *STATISTICS) == {freeze == "none"}
    assert moved(model, before, *AFFINE) == {freeze != "all"}
    assert all(norm.training == (freeze == "none") for norm in batch_norms(model))
    assert model.trunk.training


def test_freezing_all_also_forgets_a_gradient_that_waits_for_its_step():
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    model(glyphs()).std(dim=0).sum().backward()
    before = copy.deepcopy([norm.state_dict() for norm in batch_norms(model)])
    model.freeze_batch_norm("all")
    optimizer.step()
    assert moved(model, before, *AFFINE) == {False}


def test_freezing_can_be_undone_in_training_and_in_evaluation():
    model = small(freeze_bn="all").eval()
    model.freeze_batch_norm("none")
    assert not any(module.training for module in model.modules())
    before = trained(model)
    assert moved(model, before, *STATISTICS, *AFFINE) == {True}


def test_a_warm_up_and_freezing_leave_each_other_alone():
    model = small(freeze_bn="all")
    for thawed in (False, True):
        for parameter in model.trunk_parameters():
            parameter.requires_grad_(thawed)
    frozen = [p for norm in batch_norms(model) for p in norm.parameters()]
    assert not any(p.requires_grad for p in frozen)
    assert model.trunk.stem[0].weight.requires_grad
    model.requires_grad_(True).train()  # does not set those free
    assert [p for p in model.parameters() if not p.requires_grad] == frozen
    model = small()
    model.trunk.requires_grad_(False)
    model.freeze_batch_norm("statistics")
    assert not any(p.requires_grad for p in model.trunk.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, "autocast"])
def test_any_precision_gives_unit_length_in_float32_or_better(dtype):
    model, mixed = small(pooling="gem").eval(), dtype == "autocast"
    dtype = torch.float32 if mixed else dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        out = model.to(dtype)(glyphs())
    assert out.dtype == torch.promote_types(dtype, torch.float32)
    out = out.float()
    torch.testing.assert_close(out.norm(dim=1), torch.ones(6), rtol=0, atol=1e-6)
    assert (out - small(pooling="gem").eval()(glyphs())).norm() < 0.1


def test_a_trunk_of_ones_own_needs_only_a_few_lines():
    class Mine(Trunk):
        input = InputSpec(size=8, resize=8)
        num_features = 5
        pooling = "max"

        def forward(self, images):
            return images[:, :1].expand(-1, 5, -1, -1)

    model = Embedder(Mine(), 3)
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    assert isinstance(model.pooling, POOLINGS["max"])


def classifier():
    with torch.device("meta"):
        return ResNet(18)


BAD = {
    "a module": (lambda: Embedder(nn.Linear(2, 2)), TypeError, "trunk must be .* got Linear"),
    "scores": (lambda: Embedder(classifier()), ValueError, "no classifier.*Pass num_classes=0"),
    "pooling": (lambda: small(pooling="mean"), ValueError, "pooling must be one of 'avg', 'max'"),
    "head": (lambda: small(head="mlp"), ValueError, "head must be one of .*, 'none' .*'mlp'"),
    "freeze": (lambda: small(freeze_bn="statistic"), ValueError, "freeze_bn .* mean 'statistics'"),
    "size": (lambda: Embedder(SmallNetwork(), 0), ValueError, "embedding_size must be at least 1"),
}


@pytest.mark.parametrize(("build", "error", "message"), BAD.values(), ids=BAD)
def test_what_an_argument_cannot_mean_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_pixels_are_converted_before_they_are_rounded(dtype):
    torch.manual_seed(0)
    images = torch.rand(2, 3, 8, 8) * 255
    conversion = InputConversion(ResNet.input)
    exact = conversion(images).to(dtype)
    assert torch.equal(conversion.to(dtype)(images), exact) or dtype == torch.float64
    torch.testing.assert_close(conversion(images), exact)
    assert conversion(images).dtype == dtype
