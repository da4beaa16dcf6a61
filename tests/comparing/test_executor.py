"""Whoever does a unit holds its lock, leaves its result in its folder, and says what became of it.

Every executor is held to the same contract; that of Ray is in `test_ray_cluster.py`.
"""

import pickle
import threading

import pytest
from compared import small_check
from tiny import wait_until

from weiss._base.files import alone
from weiss.comparing import STUDIES, carry_out, executor, make_study, traditional
from weiss.comparing.executor import Outcome, attempt
from weiss.comparing.units import Unit, computed, failures_on_disk
from weiss.training import StoppedError


def double(folder):
    return {"twice": 2 * int(folder.name)}


def raise_(error, folder):
    raise error


def test_a_unit_reports_what_it_wrote(tmp_path):
    unit = computed("a/21", double)
    outcome = attempt(unit, tmp_path)
    assert outcome.result == unit.found(tmp_path / "a/21") == {"twice": 42}
    assert attempt(unit, tmp_path).result == {"twice": 42}
    assert not list((tmp_path / "a/21").glob(".*"))


def test_a_unit_that_another_process_holds_is_left_alone(tmp_path):
    unit = computed("a/21", double)
    (tmp_path / "a/21").mkdir(parents=True)
    with alone(tmp_path / "a/21" / "unit"):
        assert executor.is_held("a/21", tmp_path)
        assert attempt(unit, tmp_path) == Outcome("a/21", is_held=True)
        assert unit.found(tmp_path / "a/21") is None
    assert not executor.is_held("a/21", tmp_path)
    assert attempt(unit, tmp_path).result == {"twice": 42}


def test_of_many_that_reach_for_a_unit_at_once_one_does_it(tmp_path, at_once):
    calls, are_in = [], threading.Barrier(2)

    def work(folder):
        calls.append(folder)
        are_in.wait()  # until the others have tried
        return {}

    def reach(number):
        outcome = attempt(Unit("a", work, lambda folder: None), tmp_path)
        if outcome.is_held:
            held.append(number)
            if len(held) == 5:
                are_in.wait()
        return outcome

    held = []
    outcomes = at_once(reach, range(6))
    assert len(calls) == 1
    assert sum(outcome.result == {} for outcome in outcomes) == 1


@pytest.mark.parametrize("error", [ValueError("wrong"), RuntimeError("no luck"), ZeroDivisionError])
def test_a_failure_is_written_into_the_folder_and_removed_when_the_unit_is_done(tmp_path, error):
    from functools import partial

    failing, done = computed("a/1", partial(raise_, error)), computed("a/1", double)
    outcome = attempt(failing, tmp_path)
    kind = error.__name__ if isinstance(error, type) else type(error).__name__
    assert outcome.failed.startswith(f"{kind}: ")
    assert failures_on_disk([failing], tmp_path) == {"a/1": outcome.failed}
    assert attempt(done, tmp_path).result == {"twice": 2}
    assert failures_on_disk([done], tmp_path) == {}


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError("disk"), RuntimeError("CUDA error: lost"), StoppedError("?")]
)
def test_what_is_not_the_units_fault_is_raised_and_not_written(tmp_path, error):
    from functools import partial

    unit = computed("a/1", partial(raise_, error))
    with pytest.raises(type(error)):
        attempt(unit, tmp_path)
    assert failures_on_disk([unit], tmp_path) == {}
    assert not executor.is_held("a/1", tmp_path)


def test_every_unit_of_every_plan_can_be_sent_to_another_process(recipe, undisturbed):
    done = {"ms/trial-000/settings": {"settings": {"alpha": 1.0, "beta": 2.0, "base": 0.5}}}
    start = {"untrained/seed-0": {}, "mf_cwms/seed-0": {}}
    plans = [(traditional(recipe, ["mf_cwms"], seeds=2), {}), (small_check(recipe), done)]
    plans += [(make_study(name, recipe), start) for name in STUDIES]
    for plan, results in plans:
        for unit in plan.ready(results):
            again = pickle.loads(pickle.dumps(unit))
            assert again.key == unit.key
            assert again.found(undisturbed[0] / unit.key) == unit.found(undisturbed[0] / unit.key)
    # What is sent is small, however far the search has come.
    assert max(len(pickle.dumps(unit)) for unit in small_check(recipe).ready(done)) < 20_000


@pytest.mark.usefixtures("undrawn")
def test_a_folder_that_another_command_holds_does_not_keep_this_one_from_work(recipe, tmp_path):
    out, said = tmp_path / "bench", []
    held = out / "untrained" / "seed-0"
    held.mkdir(parents=True)
    ready = threading.Event()

    def hold():
        with alone(held / "unit"):
            ready.set()
            wait_until(lambda: any(line.startswith("[1/2] mf_cwms/seed-0") for line in said))

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(words)))
        found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out)
    holder.join()
    assert found["is_complete"]
    assert said[0] == "untrained/seed-0: another command is working on it"
    assert said[2].startswith("[2/2] untrained/seed-0")
