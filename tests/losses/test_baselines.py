"""The baselines: PML's values, published settings, and class vectors that stay as they are."""

import warnings

import pytest
import torch
from torch import nn

import weiss
from weiss.losses import Baseline
from weiss.losses.by_name import BASELINES

with warnings.catch_warnings(action="ignore"):
    from pytorch_metric_learning import losses, miners, regularizers

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 5
PML = {
    "contrastive_pml": lambda: (losses.ContrastiveLoss(pos_margin=0, neg_margin=1), None),
    "ms": lambda: (losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), None),
    "ms_miner": lambda: (
        losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        miners.MultiSimilarityMiner(epsilon=0.1),
    ),
    "triplet": lambda: (
        losses.TripletMarginLoss(margin=0.1),
        miners.TripletMarginMiner(margin=0.1, type_of_triplets="semihard"),
    ),
    "arcface": lambda: (losses.ArcFaceLoss(5, 4, margin=28.6, scale=64), None),
    "cosface": lambda: (losses.CosFaceLoss(5, 4, margin=0.35, scale=64), None),
    "proxy_nca": lambda: (losses.ProxyNCALoss(5, 4, softmax_scale=32), None),
    "proxy_anchor": lambda: (losses.ProxyAnchorLoss(5, 4, margin=0.1, alpha=32), None),
    "norm_softmax": lambda: (losses.NormalizedSoftmaxLoss(5, 4, temperature=0.05), None),
    "soft_triple": lambda: (
        losses.SoftTripleLoss(
            5,
            4,
            centers_per_class=10,
            la=20,
            gamma=0.1,
            margin=0.01,
            weight_reg_weight=0.2,
            weight_regularizer=regularizers.SparseCentersRegularizer(5, 10),
        ),
        None,
    ),
    "subcenter_arcface": lambda: (
        losses.SubCenterArcFaceLoss(
            num_classes=5, embedding_size=4, margin=28.6, scale=64, sub_centers=3
        ),
        None,
    ),
}
"""Losses and their miners, with the paper's settings, or those of their own publications."""
PROXIES = [name for name, entry in BASELINES.items() if entry.class_lr_scale is not None]


@pytest.mark.parametrize("name", PML)
def test_a_baseline_has_the_value_of_pml_with_published_settings(name):
    torch.manual_seed(0)
    theirs, miner = PML[name]()
    expected = theirs(X, Y) if miner is None else theirs(X, Y, miner(X, Y))
    torch.manual_seed(0)
    loss = weiss.make_loss(name, 5, 4)
    assert isinstance(loss, Baseline)
    assert expected > 0
    assert miner is None or not torch.isclose(theirs(X, Y), expected)
    torch.testing.assert_close(loss(X, Y), expected)


def test_several_vectors_of_a_class_are_a_whole_number_and_not_its_class_vector():
    for name, counts in (
        ("soft_triple", "centers_per_class"),
        ("subcenter_arcface", "sub_centers"),
    ):
        assert weiss.make_loss(name, 4, 4).class_vectors is None
        for wrong, kind in ((2.5, TypeError), (0, ValueError)):
            with pytest.raises(kind, match=f"{counts} must be"):
                weiss.make_loss(name, 4, 4, **{counts: wrong})
    one = weiss.make_loss("soft_triple", 4, 4, centers_per_class=1)
    assert one.class_vectors.equal(one.loss.fc.T)
    assert one(X, Y.clamp_max(3)).isfinite()


def test_a_baseline_with_a_miner_refuses_other_tuples():
    with pytest.raises(ValueError, match="indices_tuple must be None .*mines its own"):
        weiss.make_loss("triplet", 5, 4)(X, Y, (Y, Y, Y))


@pytest.mark.parametrize("name", PROXIES)
def test_a_batch_that_does_not_fit_the_class_vectors_is_refused(name):
    loss = weiss.make_loss(name, 5, 4)
    for embeddings, labels, words in (
        (X, Y + 1, r"labels must lie in \[0, 5\) .*; got 5\."),
        (X[:, :3], Y, "must have 4 columns.*got 3"),
        (X, torch.eye(5)[Y], "Only the losses of Weiss take those"),
    ):
        with pytest.raises(ValueError, match=words):
            loss(embeddings, labels)


def test_logits_need_class_vectors():
    with pytest.raises(TypeError, match="get_logits needs a loss with class vectors; MultiSim"):
        weiss.make_loss("ms", 5, 4).get_logits(X)


@pytest.mark.parametrize("name", weiss.LOSSES)
def test_every_loss_says_how_it_samples_and_how_fast_its_class_vectors_learn(name):
    entry = weiss.LOSSES[name]
    loss = weiss.make_loss(name, 5, 4)
    has_class_vectors = any(True for _ in loss.parameters())
    assert (entry.class_lr_scale is not None) == has_class_vectors
    assert entry.sampling == ("classes" if has_class_vectors else "pairs")
    if has_class_vectors:
        assert entry.class_lr_scale == (2000 if name.startswith("mf_") else 100)
        assert loss.class_lr_scale == entry.class_lr_scale


def separation(embeddings, labels):
    """Mean cosine inside classes less mean cosine between them."""
    unit = torch.nn.functional.normalize(embeddings.detach())
    cosine, same = unit @ unit.T, labels[:, None] == labels
    return (cosine[same].mean() - cosine[~same].mean()).item()


@pytest.mark.parametrize("name", weiss.LOSSES)
def test_training_with_any_loss_separates_the_classes(name):
    torch.manual_seed(0)
    centres = torch.randn(5, 6)
    inputs = 0.5 * centres[Y].repeat(2, 1) + 0.5 * torch.randn(24, 6)
    labels = Y.repeat(2)
    # In few dimensions a sample may start opposite to its proxy, where PML's ProxyNCA underflows.
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    # The energy of charges asks for no more distance between classes than delta.
    loss = weiss.make_loss(name, 5, 32, **{"delta": 1.0} if name == "potential_field" else {})
    before = separation(model(inputs), labels)
    optimizer = torch.optim.AdamW(weiss.parameter_groups(model, loss, lr=3e-3, class_lr=0.05))
    for _ in range(100):
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
    assert separation(model(inputs), labels) > before + 0.03


def test_the_names_are_those_recipes_rely_on():
    assert set(weiss.LOSSES) >= {
        *("contrastive", "cwms", "mf_contrastive", "mf_cwms", "binomial", "mf_binomial"),
        *("contrastive_pml", "ms", "ms_miner", "arcface", "cosface", "proxy_nca"),
        *("proxy_anchor", "norm_softmax", "triplet"),
        *("soft_triple", "subcenter_arcface", "center", "potential_field"),
    }


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_embeddings_that_are_not_finite_are_refused_or_make_the_value_nan(name, bad):
    embeddings = X.clone()
    embeddings[3, 1] = bad
    with pytest.raises(ValueError, match=r"must be finite .* 1 of 12 rows \(3\).*check=False"):
        weiss.make_loss(name, 5, 4)(embeddings, Y)
    assert weiss.make_loss(name, 5, 4, check=False)(embeddings, Y).isnan()
    assert "check" not in weiss.losses.loss_settings(name, {})


def test_a_second_batch_must_be_finite_too():
    with pytest.raises(ValueError, match="ref_emb must be finite .* 12 of 12 rows"):
        weiss.make_loss("contrastive_pml", 5, 4)(X, Y, ref_emb=X / 0, ref_labels=Y)


class Layered(nn.Module):
    """A loss with a layer of its own, whose parameters are in another module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, embeddings, labels, *_):
        if labels.max() > 4:
            raise ArithmeticError
        return nn.functional.cross_entropy(self.layer(embeddings), labels)


def test_a_loss_with_a_layer_in_half_precision_computes_in_float32_and_keeps_its_parameters():
    loss = Baseline(Layered().to(torch.bfloat16))
    parameters = list(loss.named_parameters())
    value = loss(X, Y)
    value.backward()
    assert value.dtype == torch.float32
    with pytest.raises(ArithmeticError):
        loss(X, Y + 5)
    for (name, own), (known, before) in zip(loss.named_parameters(), parameters, strict=True):
        assert name == known
        assert own is before
        assert own.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_a_baseline_in_half_precision_computes_in_float32(name, half):
    torch.manual_seed(0)
    loss = weiss.make_loss(name, 5, 4).to(half)
    exact = weiss.make_loss(name, 5, 4)
    exact.load_state_dict(loss.state_dict())
    x, wide = (X.to(half).to(dtype).requires_grad_() for dtype in (half, torch.float32))
    value, expected = loss(x, Y), exact(wide, Y)
    value.backward()
    expected.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(x.grad, wide.grad.to(half))
    for own, other in zip(loss.parameters(), exact.parameters(), strict=True):
        assert own.dtype == half  # still in its precision, still a parameter
        torch.testing.assert_close(own.grad, other.grad.to(half))
    if list(loss.parameters()):
        torch.testing.assert_close(loss.get_logits(x), exact.get_logits(wide))
