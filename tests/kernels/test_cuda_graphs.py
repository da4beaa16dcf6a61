"""When a loss is captured as a CUDA graph. Its values are tested on a GPU (test_kernels_gpu.py)."""

import copy
import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from weiss.kernels import cuda_graphs
from weiss.kernels.cuda_graphs import CapturedCounts, CudaGraphs
from weiss.kernels.dispatch import _KnownGradients, scale_in_place
from weiss.kernels.problem import BorrowedBuffers, BufferOwner, Found, Problem, Shard, Task


@pytest.fixture
def asked(monkeypatch):
    """Compute a problem, and return whether it was replayed; a list of what was captured."""
    captured, batches = [], {}

    class Graph:
        def __init__(self, task, *, copies):
            shape = tuple(task.embeddings_BD.shape)
            captured.append((*shape, "copied") if copies else shape)

        def replay(self, x, labels):
            return "replayed", None

    monkeypatch.setattr(cuda_graphs, "_Graph", Graph)
    monkeypatch.setattr(cuda_graphs, "_fuse", lambda *asked: ("plain", None))
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    graphs, fields, problem = CudaGraphs(), torch.zeros(5, 3), Problem(None, "", "")

    def ask(
        batch=4, fields=fields, problem=problem, place=0, labels_of=lambda labels: labels, want=True
    ):
        fresh = torch.zeros(batch, 3), torch.zeros(batch, dtype=torch.long)
        x, labels = batches.setdefault((batch, place), fresh)  # kept: memory is not used again
        task = Task(problem, x, fields, labels_of(labels), Shard(0, 5), want, want)
        return graphs.fuse(task)[0]

    pytest.importorskip("triton")
    return ask, captured, graphs


@pytest.mark.parametrize(
    ("places", "plain", "graphs"),
    [
        ([0] * 6, cuda_graphs.BEFORE, [(4, 3)]),
        ([0, 1] * 6, 2 * cuda_graphs.BEFORE, [(4, 3), (4, 3)]),
        (range(9), cuda_graphs.BEFORE_COPIES, [(4, 3, "copied")]),
    ],
    ids=["one place", "two places in turns", "ever new places"],
)
def test_a_problem_is_captured_when_it_has_come_back(asked, places, plain, graphs):
    """It is read where it comes back; batches in ever new memory are copied."""
    ask, captured, _ = asked
    answers = [ask(place=place) for place in places]
    assert answers == ["plain"] * plain + ["replayed"] * (len(places) - plain)
    assert captured == graphs


def test_labels_with_gaps_are_not_read_as_those_without(asked):
    ask, captured, _ = asked
    for _ in range(4):
        assert ask(labels_of=lambda labels: labels[::2]) in ("plain", "replayed")
    assert captured == [(4, 3)]
    assert ask(labels_of=lambda labels: labels[:2]) == "plain"


def test_a_loss_whose_settings_change_is_captured_again(asked):
    ask, captured, graphs = asked
    for _ in range(7):
        problem = Problem(None, "", "")
        assert [ask(problem=problem) for _ in range(150)][-1] == "replayed"
    assert len(captured) == 7
    assert len(graphs._graphs) == 1


def test_fields_that_take_turns_are_not_captured_without_end(asked):
    ask, captured, _ = asked
    both = torch.zeros(5, 3), torch.ones(5, 3)
    for turn in range(60):
        ask(fields=both[turn % 2])
    assert len(captured) <= cuda_graphs.KEPT


def test_threads_may_share_a_loss(asked):
    ask, captured, _ = asked
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda turn: ask(place=turn % 97), range(3000)))
    finally:
        sys.setswitchinterval(interval)
    assert 0 < len(captured) < 60


def test_beyond_a_few_sizes_nothing_more_is_captured(asked):
    ask, captured, _ = asked
    answers = [ask(batch) for _ in range(20) for batch in range(1, 7)]
    assert sorted(captured) == [(batch, 3) for batch in range(1, 1 + cuda_graphs.KEPT)]
    assert answers[-6:] == ["replayed"] * 4 + ["plain"] * 2


def test_graphs_of_fields_in_other_memory_make_room(asked):
    ask, captured, _ = asked
    for turn in range(6):
        fields = torch.zeros(5, 3)
        kept = [ask(fields=fields) for _ in range(150)]  # replays must pay for the next capture
        assert kept[-1] == "replayed", turn
    assert len(captured) == 6


def test_equal_numbers_of_problems_that_are_gone_are_not_counted_together(asked):
    ask, captured, _ = asked
    for _ in range(8):
        ask(problem=Problem(None, "", ""))  # each may get the memory of the last
    assert captured == []


def test_what_fails_is_not_tried_again(asked, monkeypatch):
    ask, _, _ = asked
    tried = []

    def fail(*asked, copies):
        tried.append(None)
        raise MemoryError("no room")

    monkeypatch.setattr(cuda_graphs, "_Graph", fail)
    with pytest.warns(UserWarning, match="kernel by kernel.*no room"):
        assert [ask() for _ in range(4)] == ["plain"] * 4
    assert [ask() for _ in range(5)] == ["plain"] * 5
    assert len(tried) == 1


def test_copies_start_without_graphs(asked):
    ask, _, graphs = asked
    for _ in range(4):
        ask()
    assert graphs._graphs
    assert not copy.deepcopy(graphs)._graphs
    assert not pickle.loads(pickle.dumps(graphs))._graphs


def test_a_value_alone_is_not_captured(asked):
    ask, captured, _ = asked
    assert [ask(want=False) for _ in range(9)] == ["plain"] * 9
    assert captured == []


def borrowing_loss(x, owner, buffer):
    """A loss whose gradient lies in a buffer that the next forward pass overwrites."""

    def kernel(x_BD, fields_CD, wants_x, wants_fields):
        with owner.lock:
            owner.replays += 1
            borrowed = BorrowedBuffers(owner, owner.replays)
            buffer.copy_(2 * x_BD)
        return Found((x_BD**2).sum(), buffer, None, None, borrowed)

    return _KnownGradients.apply(kernel, scale_in_place, x, torch.zeros(1, 3), True, None)


def test_borrowed_gradients_are_copied_and_computed_again_if_overwritten():
    owner, buffer = BufferOwner(), torch.zeros(2, 3)
    first, second = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    values = [borrowing_loss(x, owner, buffer) for x in (first, second)]
    for x, value in zip((first, second), values, strict=True):
        (3 * value).backward()
        torch.testing.assert_close(x.grad, 6 * x.detach())
        assert x.grad.data_ptr() != buffer.data_ptr()


def test_the_next_replay_waits_until_borrowed_gradients_are_copied(monkeypatch):
    owner, gradient = BufferOwner(), torch.ones(2)

    def multiply(gradients, factor):
        # Another thread that goes forward cannot overwrite them now.
        assert not owner.lock.acquire(blocking=False)
        return [each * factor for each in gradients]

    monkeypatch.setattr(torch, "_foreach_mul", multiply)
    (copy,) = BorrowedBuffers(owner, 0).times([gradient], torch.tensor(3.0))
    assert copy.tolist() == [3.0, 3.0]
    with owner.lock:
        owner.replays += 1
    assert BorrowedBuffers(owner, 0).times([gradient], torch.tensor(3.0)) is None


def test_memory_that_a_replay_may_still_write_to_is_kept(monkeypatch):
    kept = []
    monkeypatch.setattr(CapturedCounts, "_unread", kept)
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **how: torch.zeros(3))
    for reads in (True, False):
        counts = CapturedCounts(types.SimpleNamespace(synchronize=lambda: None))
        counts.clear()
        if reads:
            counts.read()
        del counts
        assert len(kept) == (0 if reads else 1)
