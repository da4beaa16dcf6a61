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


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_embedding_is_trunk_pooling_head_and_unit_length(pooling):
    model = small(pooling=pooling).eval()
    images = glyphs()
    features = POOLINGS[pooling]()(model.trunk((images.float() - 127.5) / 127.5))
    assert features.shape == (6, model.trunk.num_features)
    torch.testing.assert_close(model.features(images), features)
    raw = features @ model.head.embedding.weight.T + model.head.embedding.bias
    torch.testing.assert_close(model(images), raw / raw.norm(dim=1, keepdim=True))


def test_the_head_with_relu_has_a_layer_of_the_width_of_the_features_in_front():
    model = small(head="relu").eval()
    features = model.features(glyphs())
    hidden, last = model.head.hidden, model.head.embedding
    assert hidden.weight.shape == (24, 24)
    raw = (features @ hidden.weight.T + hidden.bias).clamp(min=0) @ last.weight.T + last.bias
    torch.testing.assert_close(model(glyphs()), raw / raw.norm(dim=1, keepdim=True))


def test_heads_start_by_kaiming_with_fan_out_and_without_bias():
    torch.manual_seed(0)
    head = Embedder(Vectors(300), 500, head="relu").head
    for layer, fan_out in ((head.hidden, 300), (head.embedding, 500)):
        assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
        assert not layer.bias.any()


def test_a_trunk_has_its_usual_pooling():
    class Usual(SmallNetwork):
        pooling = "max"

    model = Embedder(Usual(), 4)
    assert isinstance(model.pooling, POOLINGS["max"])


def test_pooling_and_head_train_apart_from_the_trunk():
    model = small(pooling="gem", head="relu")
    head, trunk = list(model.head_parameters()), list(model.trunk_parameters())
    assert {id(p) for p in head} == {
        id(p)
        for p in (model.pooling.p, *model.head.hidden.parameters(), *model.head[2].parameters())
    }
    assert {id(p) for p in trunk} == {id(p) for p in model.trunk.parameters()}
    assert {id(p) for p in head + trunk} == {id(p) for p in model.parameters()}


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


def test_freezing_can_be_undone():
    model = small(freeze_bn="all")
    model.freeze_batch_norm("none")
    before = trained(model)
    assert moved(model, before, *STATISTICS, *AFFINE) == {True}


def test_frozen_statistics_give_the_same_embeddings_in_training_and_evaluation():
    for freeze, same in (("none", False), ("statistics", True), ("all", True)):
        model = small(freeze_bn=freeze)
        assert torch.allclose(model.train()(glyphs()), model.eval()(glyphs())) == same


def test_freezing_does_not_switch_an_evaluated_model_to_training():
    model = small().eval()
    model.freeze_batch_norm("statistics")
    model.freeze_batch_norm("none")
    assert not any(module.training for module in model.modules())


def test_a_warm_up_of_the_head_cannot_thaw_what_is_frozen():
    model = small(freeze_bn="all")
    for thawed in (False, True):
        for parameter in model.trunk_parameters():
            parameter.requires_grad_(thawed)
    assert not any(p.requires_grad for norm in batch_norms(model) for p in norm.parameters())
    assert model.trunk.stem[0].weight.requires_grad


def test_freezing_statistics_leaves_a_warm_up_alone():
    model = small()
    model.trunk.requires_grad_(False)
    model.freeze_batch_norm("statistics")
    assert not any(p.requires_grad for p in model.trunk.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_still_gives_unit_length(dtype):
    model = small(pooling="gem").to(dtype).eval()
    out = model(glyphs())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.norm(dim=1), torch.ones(6), rtol=0, atol=1e-6)
    assert (out - small(pooling="gem").eval()(glyphs())).norm() < 0.1


def test_a_double_model_stays_double():
    assert small().double()(glyphs()).dtype == torch.float64


def test_a_trunk_of_ones_own_needs_only_a_few_lines():
    class Mine(Trunk):
        input = InputSpec(size=8, resize=8)
        num_features = 5

        def forward(self, images):
            return images[:, :1].expand(-1, 5, -1, -1)

    assert Embedder(Mine(), 3)(torch.rand(2, 3, 8, 8)).shape == (2, 3)


def classifier():
    with torch.device("meta"):
        return ResNet(18)


BAD = {
    "a module": (lambda: Embedder(nn.Linear(2, 2)), TypeError, "trunk must be .* got Linear"),
    "scores": (lambda: Embedder(classifier()), ValueError, "no classifier.*Pass num_classes=0"),
    "pooling": (lambda: small(pooling="mean"), ValueError, "pooling must be one of 'avg', 'max'"),
    "head": (lambda: small(head="mlp"), ValueError, "head must be one of 'linear', 'relu' .*'mlp'"),
    "freeze": (
        lambda: small(freeze_bn="statistic"),
        ValueError,
        "freeze_bn must be one of .* Did you mean 'statistics'",
    ),
    "size": (lambda: Embedder(SmallNetwork(), 0), ValueError, "embedding_size must be at least 1"),
    "pooled twice": (
        lambda: Embedder(Vectors(4), pooling="max"),
        ValueError,
        "pooling must be None for Embedder: features returns vectors",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_what_an_argument_cannot_mean_is_refused(mistake):
    build, error, message = BAD[mistake]
    with pytest.raises(error, match=message):
        build()


def test_frozen_affine_parameters_stay_frozen_when_training_sets_all_free():
    model = small(freeze_bn="all")
    model.requires_grad_(True)
    model.train()
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert len(frozen) == 2 * sum(isinstance(m, nn.BatchNorm2d) for m in model.trunk.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_pixels_are_converted_before_they_are_rounded(dtype):
    torch.manual_seed(0)
    images = torch.rand(2, 3, 8, 8) * 255
    conversion = InputConversion(ResNet.input)
    exact = conversion(images).to(dtype)
    assert torch.equal(conversion.to(dtype)(images), exact) or dtype == torch.float64
    torch.testing.assert_close(conversion(images), exact)
    assert conversion(images).dtype == dtype
