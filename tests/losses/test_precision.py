"""Stability at extreme settings, and accuracy in low precision."""

import math
from dataclasses import dataclass

import pytest
import torch
from budgets import MEAN_FIELD, OURS, PAIR, RATED, found

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.losses import ClassWiseMultiSimilarity, Contrastive

RATES = [(1e-6, 1e-6), (1e-6, 1e4), (1e4, 1e-6), (1e4, 1e4), (1.0, 80.0)]
DELTAS = [-1e3, 0.0, 0.2, 1e3, 1e9]


def every_form(names):
    """Sweep pair losses, and both implementations of mean-field losses."""
    ways = [(name, {}) for name in names if name in PAIR]
    for name in (name for name in names if name in MEAN_FIELD):
        ways += [(name, {"impl": i, "reg_weight": 0.1}) for i in ("reference", "streaming")]
    return pytest.mark.parametrize(("name", "options"), ways)


def assert_finite(name, options, dtype=torch.float32, autocast=False):
    torch.manual_seed(0)
    loss = weiss.make_loss(name, 7, 8, **options).to(dtype)
    with torch.autocast("cpu", enabled=autocast):
        results = found(loss, torch.randn(12, 8).to(dtype), torch.arange(12) % 5)
    assert all(tensor.isfinite().all() for tensor in results), options


@every_form(RATED)
@pytest.mark.parametrize(
    ("dtype", "autocast", "kind"),
    [
        (torch.float32, False, "euclidean"),
        (torch.float32, True, "cosine"),
        (torch.bfloat16, False, "cosine"),
        (torch.bfloat16, True, "euclidean"),
    ],
    ids=str,
)
def test_any_rate_and_offset_gives_a_finite_loss_and_gradient(name, options, dtype, autocast, kind):
    for alpha, beta in RATES:
        for delta in DELTAS:
            settings = {"alpha": alpha, "beta": beta, "delta": delta, "distance": kind}
            assert_finite(name, options | settings, dtype, autocast)


@every_form([name for name in OURS if name not in RATED])
@pytest.mark.parametrize("margin", [-1.0, 0.0, 2.5, 1e9])
def test_any_margin_gives_a_finite_loss_and_gradient(name, options, margin):
    for which in ("pos_margin", "neg_margin"):
        assert_finite(name, options | {which: margin})


def test_an_exponent_that_overflows_float32_has_the_value_of_its_asymptote():
    # beta (delta - d) is 8000: the exponential overflows even float64.
    loss = weiss.MeanFieldClassWiseMultiSimilarityLoss(2, 2, alpha=1.0, beta=1e4, delta=0.8)
    loss.load_state_dict({"fields": torch.tensor([[1.0, 0.0], [1.0, 0.0]])})
    value = loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    repulsion = 0.8  # log(1 + e^{1e4 * 0.8}) / 1e4, for one class present
    attraction = math.log1p(math.exp(-0.8))
    assert value.item() == pytest.approx(attraction + repulsion, rel=1e-6)


@dataclass(frozen=True)
class AttractionOnly(ClassWiseMultiSimilarity):
    def repulsion(self, dist):
        return dist * 0 - 1e30


@dataclass(frozen=True)
class RepulsionOnly(ClassWiseMultiSimilarity):
    def attraction(self, dist):
        return dist * 0 - 1e30


def trained_looking_batch(spread):
    """Samples around their class's field in 64 dimensions, and fields of 20 classes."""
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(20, 64, generator=generator)
    labels = torch.randint(20, (48,), generator=generator)
    noise = torch.randn(48, 64, generator=generator)
    return (fields[labels] + spread * noise).bfloat16(), labels, fields


def value_and_gradients(loss, embeddings, labels, autocast):
    x = embeddings.clone().requires_grad_()
    loss.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = loss(x, labels)
    value.backward()
    gradients = [x.grad.double()] + [p.grad.double() for p in loss.parameters()]
    return value.double(), gradients


# A gradient that is stored in bfloat16 has relative errors of up to 2^-8 from that alone.
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize(
    "interactions",
    [AttractionOnly(), RepulsionOnly(), Contrastive()],
    ids=lambda i: type(i).__name__,
)
@pytest.mark.parametrize("form", [PairLoss, MeanFieldLoss])
def test_under_autocast_each_part_is_within_a_thousandth_of_float64(
    form, interactions, spread, dtype, bound
):
    embeddings, labels, fields = trained_looking_batch(spread)
    # Put the fields where samples of other classes are, or nothing would repel.
    fields[1::2] = fields[::2] + 0.5 * fields[1::2]
    embeddings[::2] = (embeddings[::2].float() + fields[(labels[::2] + 1) % 20]).bfloat16()
    results = []
    for autocast, precision in ((True, dtype), (False, torch.float64)):
        if form is PairLoss:
            loss = PairLoss(interactions)
        else:
            loss = MeanFieldLoss(interactions, 20, 64)
            loss.load_state_dict({"fields": fields})
            loss = loss.to(torch.promote_types(precision, torch.float32))
        value, gradients = value_and_gradients(loss, embeddings.to(precision), labels, autocast)
        if isinstance(interactions, AttractionOnly):
            zero = interactions.attraction(torch.zeros((), dtype=torch.float64))
            zero = zero - math.log(2) if form is PairLoss else zero
            value = value - interactions.attraction_link.apply(zero)
        results.append((value, gradients))
    (value, gradients), (exact, exact_gradients) = results
    assert exact.abs() > 0
    assert abs(value - exact) / abs(exact) < 1e-3
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert exact_gradient.norm() > 0
        assert (gradient - exact_gradient).norm() / exact_gradient.norm() < bound


@pytest.mark.parametrize("name", weiss.LOSSES)
def test_parameters_keep_their_dtype_under_autocast(name):
    loss = weiss.make_loss(name, 5, 3)
    before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(torch.randn(8, 3).bfloat16(), torch.arange(8) % 4)
    assert value.dtype == torch.float32
    for key, tensor in loss.state_dict().items():
        assert torch.equal(tensor, before[key])
        assert tensor.dtype == before[key].dtype


@pytest.mark.parametrize(
    ("embeddings", "fields", "result"),
    [
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
    ],
)
def test_the_computation_is_in_the_wider_dtype_and_gradients_in_their_own(
    embeddings, fields, result
):
    loss = weiss.MeanFieldContrastiveLoss(4, 3).to(fields)
    x = torch.randn(6, 3, dtype=embeddings, requires_grad=True)
    value = loss(x, torch.arange(6) % 4)
    value.backward()
    assert (value.dtype, x.grad.dtype, loss.fields.grad.dtype) == (result, embeddings, fields)
