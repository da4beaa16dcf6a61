"""What a step of a loss costs: exact bytes, growth with the classes, and what does not fit."""

import pytest
import torch
from torch import nn

from weiss.comparing import costs
from weiss.comparing.costs import LiveMemory, measure_cost
from weiss.losses import LOSSES, LossEntry

SMALL = {"batch_size": 16, "embedding_size": 8, "device": "cpu", "repeats": 2}


class Towers(nn.Module):
    """``sum relu(x W^T)``: small enough to follow every tensor by hand."""

    def __init__(self, num_classes, embedding_size):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.seen = []

    def forward(self, embeddings, labels):
        self.seen.append((embeddings.detach().clone(), labels.clone()))
        return (embeddings @ self.vectors.T).relu().sum()


@pytest.fixture
def towers(monkeypatch):
    made = []

    def build(num_classes, embedding_size):
        made.append(Towers(num_classes, embedding_size))
        return made[-1]

    monkeypatch.setitem(LOSSES, "towers", LossEntry("Towers", build, "classes", 100.0, dict))
    return made


def megabytes(loss, num_classes, **options):
    return measure_cost(loss, num_classes, **SMALL | options)["megabytes"]


@pytest.mark.parametrize(("num_classes", "batch", "size"), [(300, 20, 4), (5, 2, 1000)])
def test_memory_is_what_the_tensors_of_a_step_take_together(
    towers, monkeypatch, num_classes, batch, size
):
    monkeypatch.setattr(Towers, "forward", lambda self, x, _: (x @ self.vectors.T).relu().sum())
    # At the top: the products and their relu, later the relu and its gradient. Below: the gradient
    # of the products, and those of embeddings and vectors. All along: the loss and its gradient.
    table = 4 * batch * num_classes
    gradients = 4 * (batch + num_classes) * size
    found = 1e6 * megabytes("towers", num_classes, batch_size=batch, embedding_size=size)
    assert round(found) == max(2 * table, table + gradients) + 8


def test_a_view_takes_nothing_and_a_tensor_counts_until_it_is_gone():
    live = LiveMemory(10**9)
    given = torch.ones(100)
    with live:
        view = given.view(10, 10).T[2:]
        given.add_(1.0)
        assert live.live == 0
        first = given + 1.0
        second = first[:50] * 2.0
        assert live.live == 600
        del first
        assert (live.live, live.peak) == (200, 600)
        third = torch.zeros(25)
        assert (live.live, live.peak) == (300, 600)
    assert live.peak_of(lambda: (given + 1.0)[:0]) == 400  # beyond what is alive before
    assert (live.live, live.peak) == (300, 700)
    del second, third
    assert live.live == 0
    assert len(view) == 8


def test_more_than_the_limit_is_refused_before_it_is_taken():
    live = LiveMemory(1000)
    with live:
        kept = torch.zeros(200)
        with pytest.raises(MemoryError, match="0.2 MB are needed at once, 0.0 MB are free"):
            kept[:, None] + kept
        assert live.peak == 800
        with pytest.raises(MemoryError, match="4000000.0 GB"):
            torch.empty(10**15)
        # How much this makes is in the values; it is counted once it is there.
        assert len(kept.nonzero()) == 0


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("mf_cwms", {"impl": "reference"}),
        ("mf_contrastive", {"impl": "streaming"}),
        ("proxy_anchor", {}),
    ],
)
def test_memory_grows_in_proportion_to_the_classes_and_not_to_their_pairs(loss, settings):
    one, two, four = (megabytes(loss, c, settings=settings) for c in (1000, 2000, 4000))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    # Less than a C x C table of numbers would take.
    assert four < 4 * 4000**2 / 1e6 / 10


def test_the_soft_constraint_takes_memory_for_all_pairs_of_classes_in_the_plain_formula_alone():
    plain, tiles = (
        [megabytes("mf_cwms", c, settings={"reg_weight": 1.0, "impl": impl}) for c in (1000, 2000)]
        for impl in ("reference", "streaming")
    )
    assert plain[1] / plain[0] == pytest.approx(4.0, rel=0.05)
    assert plain[1] > 4 * 2000**2 / 1e6
    assert tiles[1] / tiles[0] < 1.5
    assert tiles[1] < plain[1] / 3


def test_a_loss_over_pairs_does_not_know_how_many_classes_there_are():
    assert megabytes("cwms", 10**9) == megabytes("cwms", 100)
    assert megabytes("cwms", 100, batch_size=128) > 10 * megabytes("cwms", 100, batch_size=32)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_loss_can_be_measured_and_memory_is_the_same_each_time(loss):
    found = measure_cost(loss, 12, **SMALL)
    assert megabytes(loss, 12) == found["megabytes"] > 4 * 16 * 8 / 1e6
    times = found["milliseconds"]
    assert len(times["values"]) == 2
    assert 0 < min(times["values"]) <= times["low"] <= times["median"] <= times["high"]
    assert times["mean"] == pytest.approx(sum(times["values"]) / 2)
    named = ("loss", "num_classes", "batch_size", "embedding_size", "device")
    assert [found[name] for name in named] == [loss, 12, 16, 8, "CPU"]


def test_time_is_that_of_the_steps_after_the_first(towers, monkeypatch):
    ticks = iter([float(i) ** 2 for i in range(100)])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(ticks))
    found = measure_cost("towers", 5, **SMALL | {"repeats": 3})["milliseconds"]
    # Two readings a step, and the first WARM_UP steps do not count.
    begins = [2 * (costs.WARM_UP + i) for i in range(3)]
    assert found["values"] == [1000.0 * ((b + 1) ** 2 - b**2) for b in begins]
    assert (found["median"], found["mean"]) == (17000.0, 17000.0)
    assert (found["low"], found["high"]) == (15000.0, 19000.0)
    assert len(towers[0].seen) == 1 + costs.WARM_UP + 3  # and one for the memory


@pytest.mark.parametrize(
    ("sampling", "num_classes", "counts"),
    [("classes", 100, {1}), ("pairs", 100, {4}), ("classes", 4, {4}), ("pairs", 2, {8})],
)
def test_batches_are_composed_as_the_loss_wants_them(
    towers, monkeypatch, sampling, num_classes, counts
):
    entry = LossEntry("Towers", LOSSES["towers"].build, sampling, 100.0, dict)
    monkeypatch.setitem(LOSSES, "towers", entry)
    measure_cost("towers", num_classes, **SMALL, seed=1)
    measure_cost("towers", num_classes, **SMALL, seed=1)
    measure_cost("towers", num_classes, **SMALL, seed=2)
    (embeddings, labels), again, other = (made.seen[0] for made in towers)
    assert set(labels.bincount(minlength=num_classes).tolist()) - {0} == counts
    assert labels.max() < num_classes
    assert embeddings.shape == (16, 8)
    assert embeddings.dtype == torch.float32
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(16))
    assert torch.equal(embeddings, again[0])
    assert torch.equal(labels, again[1])
    assert not torch.equal(embeddings, other[0])


def test_what_does_not_fit_is_reported_and_the_next_is_measured(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(costs, "available_memory", lambda: 10**6)
        fits = measure_cost("mf_cwms", 100, **SMALL)
        found = measure_cost("mf_cwms", 5000, **SMALL)
    assert "megabytes" in fits
    assert found["failed"].startswith("out of memory: ")
    assert found["num_classes"] == 5000
    assert "megabytes" not in found
    assert megabytes("mf_cwms", 5000) > 0.8


@pytest.mark.parametrize("num_classes", [10**13, 10**18])
def test_class_vectors_that_no_machine_holds_are_out_of_memory(num_classes):
    found = measure_cost("mf_cwms", num_classes, **SMALL)
    assert found["failed"].startswith("out of memory: ")
    assert "failed" in measure_cost("proxy_anchor", num_classes, **SMALL)


def test_an_allocation_that_torch_could_not_make_is_a_lack_of_memory_and_nothing_else(
    towers, monkeypatch
):
    def failing(message):
        def forward(self, embeddings, labels):
            raise RuntimeError(message)

        monkeypatch.setattr(Towers, "forward", forward)
        return measure_cost("towers", 5, **SMALL)["failed"]

    said = "DefaultCPUAllocator: can't allocate memory: you tried"
    assert failing(f"{said}\nat: somewhere") == f"out of memory: {said}"
    with pytest.raises(RuntimeError, match="something else"):
        failing("something else")


def test_nobody_elses_random_numbers_change():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    measure_cost("mf_cwms", 5, **SMALL)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"loss": "mf_cwm"}, ValueError, "loss must be one of .* Did you mean 'mf_cwms'"),
        ({"num_classes": 0}, ValueError, "num_classes must be at least 1 for measure_cost"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number for measure_cost"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1 for measure_cost"),
        ({"settings": {"gamma": 1.0}}, TypeError, "has no argument 'gamma'"),
        ({"device": "cuda:99"}, ValueError, "device must be a device of this machine"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed, error, message):
    with pytest.raises(error, match=message):
        measure_cost(**{"loss": "mf_cwms", "num_classes": 5} | SMALL | changed)


@pytest.mark.gpu
def test_on_cuda_time_and_memory_are_measured_and_too_much_is_survived():
    found = measure_cost("mf_cwms", 20_000, batch_size=64, embedding_size=128, device="cuda")
    assert found["device"] == torch.cuda.get_device_name()
    assert 0 < found["milliseconds"]["low"] <= found["milliseconds"]["median"] < 1000
    # The gradient of the fields, and at most twice as much for blocks of distances.
    gradient = 20_000 * 128 * 4 / 1e6
    assert gradient < found["megabytes"] < 3 * gradient
    options = {"batch_size": 64, "embedding_size": 128, "device": "cuda"}
    # The plain formula forms all C x C distances of the soft constraint: 640 GB.
    settings = {"reg_weight": 1.0, "impl": "reference"}
    failed = measure_cost("mf_cwms", 400_000, **options, settings=settings)
    assert failed["failed"].startswith("out of memory: ")
    again = measure_cost("mf_cwms", 20_000, **options)
    assert again["megabytes"] == found["megabytes"]
