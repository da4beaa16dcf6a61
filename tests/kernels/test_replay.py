"""When a loss records itself. What a recording gives is seen on a GPU (test_gpu.py)."""

import copy
import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from weiss.kernels import problem, replay
from weiss.kernels.function import differentiable, scale_in_place
from weiss.kernels.problem import Found, Lender, Loan, Problem, Shard


@pytest.fixture
def asked(monkeypatch):
    """Ask for a problem, and hear whether it was replayed; a list of what was recorded."""
    recorded, batches = [], {}

    class Recording:
        def __init__(self, problem, x, fields, labels, shard, wants, *, copies):
            recorded.append((*x.shape, "copied") if copies else tuple(x.shape))

        def replay(self, x, labels):
            return "replayed", None

    monkeypatch.setattr(replay, "_Recording", Recording)
    monkeypatch.setattr(replay, "_fuse", lambda *asked: ("plain", None))
    monkeypatch.setattr(replay, "_can_be_recorded", lambda *asked: True)
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    recordings, fields, problem = replay.Recordings(), torch.zeros(5, 3), Problem(None, "", "")

    def ask(batch=4, fields=fields, problem=problem, place=0, labels_of=lambda labels: labels):
        wants = {"wants_embeddings": True, "wants_fields": True}
        fresh = torch.zeros(batch, 3), torch.zeros(batch, dtype=torch.long)
        x, labels = batches.setdefault((batch, place), fresh)  # kept: memory is not used again
        return recordings.fuse(problem, x, fields, labels_of(labels), Shard(0, 5), **wants)[0]

    pytest.importorskip("triton")
    return ask, recorded, recordings


def test_a_problem_is_recorded_when_it_has_come_back(asked):
    ask, recorded, _ = asked
    assert [ask() for _ in range(6)] == ["plain"] * 3 + ["replayed"] * 3
    assert recorded == [(4, 3)]


def test_batches_that_wander_are_copied(asked):
    ask, recorded, _ = asked
    answers = [ask(place=place) for place in range(9)]
    assert answers == ["plain"] * replay.WANDERING + ["replayed"] * 3
    assert recorded == [(4, 3, "copied")]


def test_batches_that_take_turns_in_two_places_are_read_there(asked):
    ask, recorded, _ = asked
    answers = [ask(place=turn % 2) for turn in range(12)]
    assert answers[-4:] == ["replayed"] * 4
    assert recorded == [(4, 3), (4, 3)]


def test_labels_with_gaps_are_not_read_as_those_without(asked):
    ask, recorded, _ = asked
    for _ in range(4):
        assert ask(labels_of=lambda labels: labels[::2]) in ("plain", "replayed")
    assert recorded == [(4, 3)]
    assert ask(labels_of=lambda labels: labels[:2]) == "plain"


def test_a_loss_whose_settings_change_is_recorded_anew(asked):
    ask, recorded, recordings = asked
    for _ in range(7):
        problem = Problem(None, "", "")
        assert [ask(problem=problem) for _ in range(150)][-1] == "replayed"
    assert len(recorded) == 7
    assert len(recordings._known) == 1


def test_fields_that_take_turns_are_not_recorded_without_end(asked):
    ask, recorded, _ = asked
    both = torch.zeros(5, 3), torch.ones(5, 3)
    for turn in range(60):
        ask(fields=both[turn % 2])
    assert len(recorded) <= replay.KEPT


def test_threads_may_share_a_loss(asked):
    ask, recorded, _ = asked
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda turn: ask(place=turn % 97), range(3000)))
    finally:
        sys.setswitchinterval(interval)
    assert 0 < len(recorded) < 60


def test_beyond_a_few_sizes_nothing_more_is_recorded(asked):
    ask, recorded, _ = asked
    answers = [ask(batch) for _ in range(20) for batch in range(1, 7)]
    assert sorted(recorded) == [(batch, 3) for batch in range(1, 1 + replay.KEPT)]
    assert answers[-6:] == ["replayed"] * 4 + ["plain"] * 2


def test_recordings_of_fields_that_were_elsewhere_make_room(asked):
    ask, recorded, _ = asked
    for turn in range(6):
        fields = torch.zeros(5, 3)
        kept = [ask(fields=fields) for _ in range(150)]  # recordings must have paid for others
        assert kept[-1] == "replayed", turn
    assert len(recorded) == 6


def test_equal_numbers_of_problems_that_are_gone_are_not_counted_together(asked):
    ask, recorded, _ = asked
    for _ in range(8):
        ask(problem=Problem(None, "", ""))  # each may get the memory of the last
    assert recorded == []


def test_what_fails_is_not_tried_again(asked, monkeypatch):
    ask, _, _ = asked
    tried = []

    def fail(*asked, copies):
        tried.append(None)
        raise MemoryError("no room")

    monkeypatch.setattr(replay, "_Recording", fail)
    with pytest.warns(UserWarning, match="kernel by kernel.*no room"):
        assert [ask() for _ in range(4)] == ["plain"] * 4
    assert [ask() for _ in range(5)] == ["plain"] * 5
    assert len(tried) == 1


def test_copies_begin_anew(asked):
    ask, _, recordings = asked
    for _ in range(4):
        ask()
    assert recordings._known
    assert not copy.deepcopy(recordings)._known
    assert not pickle.loads(pickle.dumps(recordings))._known


@pytest.mark.parametrize(
    ("batch", "num_classes", "size"), [(4, 2**20 + 1, 2), (1, 2**14 + 1, 512), (4, 5, 3)]
)
def test_large_problems_and_those_of_a_cpu_are_not_recorded(batch, num_classes, size):
    problem, shard = Problem(None, "cosine", "classes"), Shard(0, num_classes)
    x, fields = (torch.empty(rows, size, device="meta") for rows in (batch, num_classes))
    assert not replay._can_be_recorded(problem, x, fields, shard, (True, True))


def lent_loss(x, lender, written):
    """A loss whose gradient lies in memory that the next forward pass writes to."""

    def compute(x_BD, fields_CD, wants_x, wants_fields):
        with lender.lock:
            lender.turn += 1
            lent = Loan(lender, lender.turn)
            written.copy_(2 * x_BD)
        return Found((x_BD**2).sum(), written, None, None, lent)

    return differentiable(compute, scale_in_place, x, torch.zeros(1, 3))


def test_lent_gradients_are_copied_and_computed_again_if_they_are_gone():
    lender, written = Lender(), torch.zeros(2, 3)
    first, second = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    values = [lent_loss(x, lender, written) for x in (first, second)]
    for x, value in zip((first, second), values, strict=True):
        (3 * value).backward()
        torch.testing.assert_close(x.grad, 6 * x.detach())
        assert x.grad.data_ptr() != written.data_ptr()


def test_the_next_turn_waits_until_lent_gradients_are_copied(monkeypatch):
    lender, gradient = Lender(), torch.ones(2)

    def multiply(gradients, factor):
        # Another thread that goes forward cannot write to them now.
        assert not lender.lock.acquire(blocking=False)
        return [each * factor for each in gradients]

    monkeypatch.setattr(torch, "_foreach_mul", multiply)
    (copy,) = Loan(lender, 0).times([gradient], torch.tensor(3.0))
    assert copy.tolist() == [3.0, 3.0]
    with lender.lock:
        lender.turn += 1
    assert Loan(lender, 0).times([gradient], torch.tensor(3.0)) is None


def test_memory_that_may_still_be_written_to_is_kept(monkeypatch):
    kept = []
    monkeypatch.setattr(problem.Notepad, "_unread", kept)
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **how: torch.zeros(3))
    for reads in (True, False):
        notepad = problem.Notepad(types.SimpleNamespace(synchronize=lambda: None))
        notepad.wipe()
        if reads:
            notepad.read()
        del notepad
        assert len(kept) == (0 if reads else 1)
