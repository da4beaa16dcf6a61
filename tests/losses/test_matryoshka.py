"""The mean over prefixes, against losses that are built for each size and know no others."""

import pytest
import torch
from budgets import DERIVED, soft
from pytorch_metric_learning import losses as pml

import weiss
from weiss.losses import LOSSES, Baseline, Matryoshka
from weiss.losses.baselines import CLASSES_IN_COLUMNS

SIZE, CLASSES, DIMENSIONS = 6, 6, [6, 4, 2]  # C = D: no axis is known by its size
Y = torch.tensor([0, 2, 2, 4, 0, 2, 1, 4, 4, 1])


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(Y), SIZE, generator=generator, dtype=torch.float64).to(dtype)


def loop(name, whole, embeddings, labels, arguments, dimensions=DIMENSIONS):
    """Return the mean over prefixes, and its gradients, from one loss of each size."""
    x = embeddings.clone().requires_grad_()
    mine = dict(whole.named_parameters())
    total, by_class = 0.0, {key: torch.zeros_like(value) for key, value in mine.items()}
    for size in dimensions:
        short = x[:, :size] / x[:, :size].norm(dim=1, keepdim=True)
        alone = weiss.make_loss(name, CLASSES, size, **arguments).double()
        places = {}
        for key, parameter in alone.named_parameters():
            is_columns = key.rpartition(".")[2] in CLASSES_IN_COLUMNS
            places[key] = (slice(0, size),) if is_columns else (slice(None), slice(0, size))
            parameter.data.copy_(mine[key].detach()[places[key]])
        value = alone(short, labels) / len(dimensions)
        value.backward(retain_graph=True)
        total = total + value.detach()
        for key, parameter in alone.named_parameters():
            by_class[key][places[key]] += parameter.grad
    return total, x.grad, by_class


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "center"])
def test_value_and_gradients_are_those_of_a_loop_over_losses_of_each_size(name):
    torch.manual_seed(0)
    settings = soft(name) if name in DERIVED else {}
    for more in ({}, {"reg_weight": 0.7, "average": "samples"} if name.startswith("mf_") else {}):
        arguments = settings | more
        loss = weiss.make_loss(name, CLASSES, SIZE, **arguments).double()
        x = batch().requires_grad_()
        value = Matryoshka(loss, DIMENSIONS)(x, Y)
        value.backward()
        expected, by_x, by_class = loop(name, loss, batch(), Y, arguments)
        exact = {"rtol": 1e-9, "atol": 1e-9}
        torch.testing.assert_close(value.detach(), expected, **exact)
        torch.testing.assert_close(x.grad, by_x, **exact)
        for key, parameter in loss.named_parameters():
            torch.testing.assert_close(parameter.grad, by_class[key], **exact)


SEVERAL = torch.nn.functional.one_hot(Y, CLASSES) | torch.eye(CLASSES).long()[(Y + 1) % CLASSES]


@pytest.mark.parametrize(
    ("impl", "skip", "all_labels"),
    [
        ("reference", "auto", (Y, SEVERAL)),
        ("streaming", "auto", (Y, SEVERAL)),
        ("auto", "on", (Y,)),
    ],
)
def test_kernels_take_prefixes_of_fields(impl, skip, all_labels):
    for labels in all_labels:
        arguments = {"impl": impl, "skip": skip, "neg_margin": 0.9}
        loss = weiss.make_loss("mf_contrastive", CLASSES, SIZE, **arguments).double()
        x = batch().requires_grad_()
        value = Matryoshka(loss, DIMENSIONS)(x, labels)
        value.backward()
        plain = {"neg_margin": 0.9, "impl": "reference"}
        expected, by_x, by_class = loop("mf_contrastive", loss, batch(), labels, plain)
        torch.testing.assert_close(value.detach(), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(x.grad, by_x, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(loss.fields.grad, by_class["fields"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mf_cwms", "contrastive", "arcface"])
def test_the_whole_embedding_alone_is_the_plain_loss_to_the_last_bit(name):
    loss = weiss.make_loss(name, CLASSES, SIZE).double()
    assert torch.equal(Matryoshka(loss, [SIZE])(batch(), Y), loss(batch(), Y))


def test_a_pair_loss_takes_any_distance_and_embeddings_of_the_largest_dimension():
    loss = Matryoshka(weiss.make_loss("contrastive", 0, 0, distance="euclidean"), DIMENSIONS)
    expected, _by_x, _ = loop(
        "contrastive", loss.loss, batch(), Y, {"distance": "euclidean"}, [4, 2]
    )
    whole = loss.loss(batch(), Y)
    torch.testing.assert_close(loss(batch(), Y), (whole + 2 * expected) / 3)
    with pytest.raises(ValueError, match=r"embeddings must .*6.*Matryoshka"):
        loss(batch()[:, :5], Y)


def test_prefixes_of_half_precision_are_scaled_in_float32_also_under_autocast():
    torch.manual_seed(0)
    loss = weiss.make_loss("mf_cwms", CLASSES, SIZE)
    x = batch(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = Matryoshka(loss, DIMENSIONS)(x, Y)
    value.backward()
    assert value.dtype == torch.float32
    assert x.grad.dtype == torch.bfloat16
    exact = loop("mf_cwms", loss.double(), x.detach().double(), Y, {})[0]
    torch.testing.assert_close(value.detach().double(), exact, rtol=1e-5, atol=0)


def test_the_loss_stays_as_it_was_also_after_an_error():
    loss = weiss.make_loss("mf_contrastive", CLASSES, SIZE)
    fields = loss.fields
    wrapped = Matryoshka(loss, DIMENSIONS)
    with pytest.raises(ValueError, match="labels must lie in"):
        wrapped(batch(torch.float32), Y + CLASSES)
    assert (loss.fields is fields, loss.embedding_size) == (True, SIZE)
    groups = weiss.parameter_groups(torch.nn.Linear(3, SIZE), wrapped, lr=1e-3)
    assert [(group["name"], len(group["params"])) for group in groups][1] == ("fields", 1)
    assert list(wrapped.state_dict()) == ["loss.fields"]


@pytest.mark.parametrize(
    ("make", "error", "law"),
    [
        (lambda: (pml.ArcFaceLoss(5, 6), [6, 3]), TypeError, "Baseline.*ArcFaceLoss"),
        (lambda: (torch.nn.MSELoss(), [6, 3]), TypeError, "MSELoss"),
        (lambda: (weiss.make_loss("center", 5, 6), [6, 3]), ValueError, "CenterLoss.*'centers'"),
        (
            lambda: (weiss.make_loss("mf_cwms", 5, 6, distance="euclidean"), [6, 3]),
            ValueError,
            "distance must be 'cosine'.*'euclidean'",
        ),
        (
            lambda: (Baseline(pml.CrossBatchMemory(pml.ContrastiveLoss(), 6, 8)), [6, 3]),
            ValueError,
            "keep no tensors",
        ),
        (lambda: (weiss.make_loss("mf_cwms", 5, 6), [5, 3]), ValueError, r"size.* 6,.*\[5, 3\]"),
        (lambda: (weiss.make_loss("mf_cwms", 5, 6), [6, 6]), ValueError, r"descend.*\[6, 6\]"),
        (lambda: (weiss.make_loss("cwms", 5, 6), [3, 6]), ValueError, r"descend.*\[3, 6\]"),
        (lambda: (weiss.make_loss("cwms", 5, 6), []), ValueError, r"descend.*\[\]"),
        (lambda: (weiss.make_loss("cwms", 5, 6), [6, 0]), ValueError, "dimensions .*0"),
        (lambda: (weiss.make_loss("cwms", 5, 6), [6.0, 2]), TypeError, "dimensions .*6.0"),
    ],
)
def test_it_refuses_losses_and_dimensions_that_cannot_be_meant(make, error, law):
    with pytest.raises(error, match=law):
        Matryoshka(*make())
