"""Workers share a plan: real runs, real processes, some of them killed."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from tiny import TIMES, begin, settings, tiny_recipe, wait_until, without_times

from weiss.comparing import (
    carry_out,
    current_summary,
    open_ledger,
    reality_check,
    traditional,
    units,
    workers,
)
from weiss.comparing import folder as folders
from weiss.comparing import ledger as ledgers
from weiss.comparing.folder import join, read_plan
from weiss.comparing.ledger import Claim, Ledger, StorageError
from weiss.runs import Run
from weiss.training import NotFiniteError, StoppedError, measure_untrained

QUICK = {"train__epochs": 1, "train__warmup_epochs": 0, "train__batch_size": 8}
NUM_IMAGES = 80
# What workers do besides: write down whenever they decode all images; hang in the first training.
COUNTING = """
real = cache.decode_table


def decode(sink, table, *more):
    with open(note, "a") as file:
        file.write(f"{len(table)}\\n")
    return real(sink, table, *more)


cache.decode_table = decode
"""
HANGING = """
real = units.train


def train(*given, **options):
    try:
        open(note, "x").close()
    except FileExistsError:
        return real(*given, **options)
    time.sleep(600)


units.train = train
"""

pytestmark = pytest.mark.usefixtures("undrawn")


def table(summary):
    """What must not depend on how the work was done: every score and every trial, no times."""
    return [
        {
            "name": row["name"],
            "settings": row["settings"],
            "trials": row.get("trials"),
            "scores": {
                name: score["values"]
                for name, score in row["scores"].items()
                if name not in ("seconds", "images_per_second")
            },
        }
        for row in summary["rows"]
    ]


def small_check(recipe, **changes):
    """A reality check of 18 units."""
    return reality_check(recipe, ["ms"], **({"trials": 2, "repeats": 2, "folds": 2} | changes))


def bench(stripes, out, *options, protocol="traditional", **changes):
    """Return the command line of a bench."""
    cache = {"data__cache": Path(out).parent / "cache"}  # where workers share decoded images
    said = [word for line in settings(**(QUICK | cache | changes)) for word in ("--set", line)]
    return [
        *(sys.executable, "-m", "weiss", "bench", protocol, str(stripes), "--out", str(out)),
        *map(str, options),
        *said,
    ]


CHECK = ["--losses", "ms", "--trials", 2, "--repeats", 2, "--folds", 2]


def start(command, **options):
    return begin(command, stderr=subprocess.STDOUT, **options)


def summary_of(out):
    return json.loads((Path(out) / "summary.json").read_text())


def attempts(out):
    return open_ledger(Path(out), None, None).attempts()


@pytest.fixture(scope="session")  # tests that go to another process and back leave a module
def undisturbed(recipe, tmp_path_factory):
    """A small reality check, done by one worker without a break; only to be read."""
    out = tmp_path_factory.mktemp("undisturbed") / "bench"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every test here, but this comes before what is a module's
    try:
        return out, carry_out(small_check(recipe), out, quiet=True)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_a_bench_leaves_a_complete_table(undisturbed):
    out, found = undisturbed
    assert found["is_complete"]
    assert found["num_done"] == found["num_units"] == 18
    assert [row["title"] for row in found["rows"]] == ["untrained", "MS"]
    for row in found["rows"]:
        for how in ("separated", "concatenated"):
            for name in ("map_at_r", "precision_at_1", "r_precision"):
                score = row["scores"][f"{how}.{name}"]
                assert len(score["values"]) == 2
                assert score["low"] <= score["mean"] <= score["high"]
    assert found == summary_of(out)


def test_separated_is_the_mean_of_the_folds_and_concatenated_all_of_them(undisturbed):
    from weiss.evaluation import concatenate_embeddings, retrieval_metrics
    from weiss.training import embed_runs

    out, found = undisturbed
    runs = [out / "ms" / "repeat-01" / f"fold-{fold}" for fold in range(2)]
    tested = [Run(run).result()["test"]["map_at_r"] for run in runs]
    scores = found["rows"][1]["scores"]
    assert scores["separated.map_at_r"]["values"][1] == pytest.approx(sum(tested) / 2)
    embedded = embed_runs(runs, split="test")
    whole = concatenate_embeddings([each.embeddings for each in embedded])
    assert whole.shape[1] == 2 * 16
    metrics = retrieval_metrics(whole, embedded[0].table.labels)
    assert scores["concatenated.map_at_r"]["values"][1] == pytest.approx(metrics["map_at_r"])


def test_trials_never_see_the_test_set_and_leave_no_network(undisturbed):
    out, _ = undisturbed
    for kind, is_repeat in (("trial", False), ("repeat", True)):
        for run in out.glob(f"ms/{kind}-*/fold-*"):
            assert ("test" in Run(run).result()) == is_repeat
            assert (run / "model.safetensors").exists() == is_repeat
    assert not list(out.glob("*/*/*/state"))


def test_doing_it_again_does_nothing_again(undisturbed, copy, recipe):
    before = attempts(copy)
    assert carry_out(small_check(recipe), copy, quiet=True) == undisturbed[1]
    assert attempts(copy) == before
    assert set(before.values()) == {1}


def test_a_finished_unit_redone_is_bit_identical(undisturbed, copy, recipe):
    from weiss._base.tensor_files import read_tensors

    out, found = undisturbed
    redone = ["ms/trial-001/fold-1", "ms/repeat-01/fold-0", "ms/trial-001/settings"]
    for key in [*redone, "ms/repeat-01/ensemble"]:  # the folder has lost it, the ledger has not
        shutil.rmtree(copy / key)
    assert table(carry_out(small_check(recipe), copy, quiet=True)) == table(found)
    assert attempts(copy)["ms/repeat-00/ensemble"] == 1
    for key in redone:
        old, new = (json.loads((top / key / "result.json").read_text()) for top in (out, copy))
        assert without_times(old) == without_times(new)
        assert set(TIMES) & set(old) == set(TIMES) & set(new)
    old, new = (read_tensors(top / redone[1] / "model.safetensors")[0] for top in (out, copy))
    assert all((old[name] == new[name]).all() for name in {**old, **new})


def test_a_lost_ledger_costs_nothing_that_was_done(undisturbed, copy, recipe):
    (copy / "ledger.sqlite3").unlink()
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    assert table(carry_out(small_check(recipe), copy, quiet=True)) == table(undisturbed[1])
    assert times == {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}


def test_a_summary_of_what_lies_there_needs_no_ledger(undisturbed, copy):
    (copy / "ledger.sqlite3").unlink()
    shutil.rmtree(copy / "ms" / "repeat-01")
    assert current_summary(copy) == undisturbed[1]  # which has more than is there now
    (copy / "summary.json").unlink()
    part = current_summary(copy)
    assert not part["is_complete"]
    assert part["num_done"] == 15
    score = part["rows"][1]["scores"]["concatenated.map_at_r"]
    assert (len(score["values"]), score["low"]) == (1, None)
    assert table(part)[0] == table(undisturbed[1])[0]


@pytest.fixture
def changed_workers(tmp_path, monkeypatch):
    """Let worker processes first run some code, which knows a file to note something in."""

    def change(code):
        note, script, python = (tmp_path / name for name in ("note", "worker.py", "python"))
        imports = (
            "import sys, time\nfrom weiss.cli import main\nfrom weiss.comparing import units\n"
        )
        imports += "from weiss.data import cache\n"
        # NOTE -m weiss._base.parent PID weiss join-in
        arguments = "note, _, _, _, _, *sys.argv[1:] = sys.argv[1:]\n"
        script.write_text(f"{imports}{arguments}{code}\nmain()\n")
        words = shlex.join([sys.executable, str(script), str(note)])
        python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        return note

    return change


@pytest.mark.dist
def test_two_workers_give_the_table_of_one_and_do_nothing_twice_and_decode_once(
    undisturbed, stripes, tmp_path, changed_workers, capfd
):
    decoded, cache, out = changed_workers(COUNTING), tmp_path / "cache", tmp_path / "bench"
    plan = small_check(tiny_recipe(stripes, data__cache=cache, **QUICK))
    assert table(carry_out(plan, out, workers=2)) == table(undisturbed[1])
    assert set(attempts(out).values()) == {1}
    assert len(attempts(out)) == 18
    assert "[18/18]" in capfd.readouterr().out
    assert decoded.read_text().split() == [str(NUM_IMAGES)]
    # Not in the memory of the first worker only: where the second one finds them.
    assert len(list(cache.glob("images/*/pixels-*.bin"))) == 1


@pytest.mark.dist
def test_the_unit_of_a_killed_worker_goes_to_the_other(recipe, tmp_path, changed_workers, capfd):
    hangs, out = changed_workers(HANGING), tmp_path / "bench"

    def kill():
        wait_until(hangs.exists)
        rows, _ = open_ledger(out, None, None)._rows()
        os.kill(json.loads(rows["mf_cwms/seed-0"].worker)[1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, workers=2)
    killer.join()
    assert found["is_complete"]
    assert attempts(out) == {"untrained/seed-0": 1, "mf_cwms/seed-0": 2}
    assert "was killed (signal 9)" in capfd.readouterr().out


@contextmanager
def interrupted(reached):
    """Press Ctrl-C as soon as something is so, and expect that the comparison stops."""

    def stop():
        wait_until(reached)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(StoppedError, match="Start the same command again"):
        yield
    stopper.join()


def test_stopping_gives_the_unit_back_and_says_how_to_go_on(stripes, tmp_path):
    out = tmp_path / "bench"
    begun = Run(out / "mf_cwms" / "seed-0")
    recipe = tiny_recipe(stripes, **QUICK | {"train__epochs": 5000})
    with interrupted(lambda: begun.exists() and begun.metrics()):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    assert not summary_of(out)["is_complete"]
    assert (begun.folder / "state").exists()
    assert open_ledger(out, None, None).claim(["mf_cwms/seed-0"]).attempt == 2


@pytest.fixture
def fake_workers(tmp_path, monkeypatch):
    """Let worker processes be a line of shell, after they have read what to do."""

    def replace(line):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\ncat > /dev/null\n{line}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return replace


def test_workers_that_all_fail_are_an_error(recipe, tmp_path, fake_workers, capsys):
    fake_workers("exit 3")
    with pytest.raises(RuntimeError, match="exit codes 3, 3"):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path / "bench", workers=2)
    assert "worker 1 ended with code 3" in capsys.readouterr().out


def test_stopping_a_command_stops_its_workers(recipe, tmp_path, fake_workers):
    fake_workers(f"echo $$ > {tmp_path}/worker-$$; exec sleep 600")
    with interrupted(lambda: len(list(tmp_path.glob("worker-*"))) == 2):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path / "bench", workers=2)
    assert not any(psutil.pid_exists(int(p.name[7:])) for p in tmp_path.glob("worker-*"))


@pytest.mark.parametrize(("visible", "used"), [("5,7", ["5", "7"]), ("", ["0", "1"])])
def test_workers_take_turns_among_the_gpus(
    recipe, tmp_path, fake_workers, monkeypatch, visible, used
):
    fake_workers(f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/devices")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    carry_out(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path / "bench", workers=3)
    assert sorted((tmp_path / "devices").read_text().split()) == sorted([*used, used[0]])


def killed_until_done(command, seed):
    """Kill it and its workers at random and start again; return how often, at most six times."""
    chance, kills = random.Random(seed), 0
    while True:
        process = start(command, start_new_session=True)
        # With several workers it takes seconds until any of them begins.
        moment = None if kills == 6 else 3 + 1.5 * seed + 4 * chance.random()
        try:
            said = process.communicate(timeout=moment)[0].decode()
        except subprocess.TimeoutExpired:
            everybody = [*psutil.Process(process.pid).children(recursive=True)]
            for each in chance.sample(everybody, len(everybody)):
                each.kill()
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, said
        return kills


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_random_and_restarted_the_table_is_the_same(
    undisturbed, stripes, tmp_path, workers
):
    out = tmp_path / "bench"
    options = [*CHECK, "--workers", workers]
    command = bench(stripes, out, *options, protocol="reality-check", train__checkpoint_seconds=0)
    killed_until_done(command, workers)
    assert table(summary_of(out)) == table(undisturbed[1])


@pytest.fixture
def fails(monkeypatch):
    """Let the training of units raise an error, if its folder has these words in its name."""
    real = units.train

    def replace(*errors, words="", times=99):
        left = [*errors] * times

        def train(recipe, out, **options):
            if words in str(out) and left:
                raise left.pop()
            return real(recipe, out, **options)

        monkeypatch.setattr(units, "train", train)

    return replace


def test_a_seed_that_fails_does_not_stop_the_others_and_is_tried_again(recipe, tmp_path, fails):
    fails(RuntimeError("no luck today"), words="seed-1", times=1)
    plan = traditional(recipe, ["mf_cwms"], seeds=3)
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    row = found["rows"][1]
    assert row["failed"] == {"mf_cwms/seed-1": "RuntimeError: no luck today"}
    assert row["repetitions"] == [0, 2]
    assert not found["is_complete"]
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    assert found["is_complete"]
    assert found["rows"][1]["repetitions"] == [0, 1, 2]


def test_an_error_that_is_nobodys_fault_gives_the_unit_back(recipe, tmp_path, fails):
    fails(MemoryError("no memory"))
    with pytest.raises(MemoryError):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path / "bench", quiet=True)
    ledger = open_ledger(tmp_path / "bench", None, None)
    assert ledger.claim(["mf_cwms/seed-0"]).attempt == 2
    assert not ledger.failures()


def test_a_trial_whose_loss_is_not_finite_scores_zero_and_the_search_goes_on(
    recipe, tmp_path, fails
):
    fails(NotFiniteError("the loss must stay finite; it was nan"), words="trial-001")
    found = carry_out(small_check(recipe, trials=3, repeats=1), tmp_path / "bench", quiet=True)
    trials = found["rows"][1]["trials"]
    assert [trial["value"] == 0 for trial in trials] == [False, True, False]
    assert "it was nan" in trials[1]["failed"]
    assert found["is_complete"]


def test_what_fails_twice_in_a_row_or_is_refused_is_a_failed_trial(recipe, tmp_path, fails):
    def refused():
        raise ValueError("beta must be positive")

    # A lost device is not the fault of the settings, nor is a passing fault of the machine.
    unit = units.trial("ms/trial-000/fold-0", lambda: recipe)
    fails(RuntimeError("CUDA error: unspecified launch failure"), times=1)
    with pytest.raises(RuntimeError, match="CUDA error"):
        unit.work(tmp_path / "lost")
    assert unit.found(tmp_path / "lost") is None
    fails(RuntimeError("DataLoader worker (pid 1) is killed by signal"), times=1)
    assert unit.work(tmp_path / "passing")["map_at_r"] > 0
    fails(RuntimeError("these settings do not work"), ZeroDivisionError("nor in another way"))
    for name, make, why in (
        ("one", lambda: recipe, "these settings"),
        ("two", refused, "must be positive"),
    ):
        unit = units.trial("k", make)
        assert why in unit.work(tmp_path / name)["failed"]
        assert why in unit.found(tmp_path / name)["failed"]


def test_a_comparison_may_grow_but_not_change(recipe, tmp_path):
    out = tmp_path / "bench"
    small = traditional(recipe, ["mf_cwms"], seeds=1)
    carry_out(small, out, quiet=True, command="first")
    found = carry_out(traditional(recipe, ["ms"], seeds=2), out, quiet=True, command="second")
    assert [row["name"] for row in found["rows"]] == ["untrained", "mf_cwms", "ms"]
    assert all(row["repetitions"] == [0, 1] for row in found["rows"])
    assert attempts(out)["mf_cwms/seed-0"] == 1
    assert found["command"] == "first\nsecond"
    # A command that asks for less does not take rows away.
    assert carry_out(small, out, quiet=True)["rows"] == found["rows"]
    other = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"lr": 0.5})})
    with pytest.raises(ValueError, match=r"other settings.*\n  optim.lr: 0.01 -> 0.5\n.*the same"):
        carry_out(traditional(other, ["mf_cwms"], seeds=2), out, quiet=True)
    with pytest.raises(ValueError, match="it holds 'traditional'. Choose another folder"):
        carry_out(small_check(recipe), out, quiet=True)
    elsewhere = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"device": "auto"})}
    )
    assert carry_out(traditional(elsewhere, ["mf_cwms"], seeds=2), out, quiet=True)["is_complete"]


def test_another_number_of_trials_or_another_space_is_another_comparison(copy, recipe, tmp_path):
    with pytest.raises(ValueError, match="trials: 2 -> 3"):
        carry_out(small_check(recipe, trials=3), copy, quiet=True)
    spaces = tmp_path / "spaces.toml"
    spaces.write_text("[ms]\nalpha = { low = 1.0, high = 2.0 }\n")
    with pytest.raises(ValueError, match=r"spaces\.ms: .*0\.01.* -> .*2\.0"):
        carry_out(small_check(recipe, spaces=spaces), copy, quiet=True)
    _, grown = join(reality_check(recipe, ["triplet"], trials=2, repeats=1, folds=2), copy)
    assert set(grown["options"]["spaces"]) == {"ms", "triplet"}
    assert grown["options"]["repeats"] == 2


def test_a_storage_of_another_study_is_refused(recipe, tmp_path):
    storage = str(tmp_path / "shared.sqlite3")
    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    join(plan, tmp_path / "a" / "bench", storage=storage)
    with pytest.raises(ValueError, match="its study 'bench' belongs to another folder"):
        join(plan, tmp_path / "b" / "bench", storage=storage)
    assert not (tmp_path / "b" / "bench").exists()
    join(plan, tmp_path / "b" / "bench", storage=storage, study="mine")


def test_a_run_folder_a_broken_plan_and_torchrun_are_refused(recipe, tmp_path, monkeypatch):
    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    measure_untrained(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="is a run itself"):
        join(plan, tmp_path / "run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "plan.json").write_text('{"id": ')
    with pytest.raises(ValueError, match="must be the plan of a comparison"):
        join(plan, tmp_path / "broken")
    with pytest.raises(ValueError, match="holds no plan.json"):
        current_summary(tmp_path)
    with pytest.raises(ValueError, match="--workers must be"):
        carry_out(plan, tmp_path / "new", workers=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one process; .* without torchrun"):
        carry_out(plan, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.dist
@pytest.mark.postgres
def test_machines_that_share_a_server_share_the_work_and_wait_for_its_restart(
    stripes, tmp_path, server
):
    """Three commands at once, of which one is killed, against a real PostgreSQL server."""
    out = tmp_path / f"bench{os.getpid()}"
    options = ["--losses", "mf_cwms", "--seeds", 4, "--storage", server.address]
    machines = [start(bench(stripes, out, *options, train__epochs=20)) for _ in range(3)]
    machines[0].stdout.readline()
    machines[1].kill()
    server.stop()
    time.sleep(4)
    server.start()
    said = [machine.communicate(timeout=240)[0].decode() for machine in machines]
    assert machines[0].returncode == machines[2].returncode == 0, said
    assert "waiting for the storage" in said[0] + said[2]
    assert summary_of(out)["is_complete"]
    found = open_ledger(out, server.address, None).attempts()
    assert len(found) == 8
    assert sum(found.values()) <= 9


def test_a_storage_that_does_not_answer_for_a_moment_is_asked_again(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "STORAGE_WAIT", 0.01)
    monkeypatch.setattr(workers, "BEAT_SECONDS", 0.01)
    answers = {}

    def now_and_then(name):
        real = getattr(Ledger, name)

        def ask(self, *words):
            answers[name] = answers.get(name, 0) + 1
            if answers[name] % 3 == 2:
                raise StorageError("gone for a moment")
            return real(self, *words)

        monkeypatch.setattr(Ledger, name, ask)

    for name in ("results", "claim", "finish"):
        now_and_then(name)
    said = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(words)))
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=2), tmp_path / "bench")
    assert found["is_complete"]
    assert any("waiting for the storage: gone for a moment" in line for line in said)
    monkeypatch.setattr(workers, "STORAGE_SECONDS", -1.0)
    with pytest.raises(StorageError):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=3), tmp_path / "bench", quiet=True)


def test_damaged_results_are_named_and_block_no_comparison(recipe, tmp_path, monkeypatch):
    out = tmp_path / "bench"
    plan = small_check(recipe, trials=1, repeats=1)
    found = carry_out(plan, out, quiet=True)
    loss = out / "ms"
    harmed = [loss / "repeat-00" / name for name in ("fold-0", "ensemble")]
    harmed = [path / "result.json" for path in (*harmed, loss / "trial-000" / "fold-1")]
    harmed = [*(out / "untrained").rglob("result.json"), *harmed]
    for path in harmed:
        path.write_text(path.read_text()[:-20])
    with pytest.warns(UserWarning, match="result.json must be JSON; it is cut off"):
        before = current_summary(out)
    assert table(before) == table(found)  # the last complete summary
    trained, real = [], units.train

    def train(recipe, folder, **options):
        trained.append(folder)
        return real(recipe, folder, **options)

    monkeypatch.setattr(units, "train", train)
    with pytest.warns(UserWarning, match="result.json must be JSON") as caught:
        again = carry_out(plan, out, quiet=True)
    said = " ".join(str(each.message) for each in caught)
    assert all(f"{path} must be JSON; it is cut off" in said for path in harmed)
    assert table(again) == table(found)
    # Units that train; of the first the model and the metrics are there, so it takes no steps.
    assert sorted(trained) == [loss / "repeat-00" / "fold-0", loss / "trial-000" / "fold-1"]


@pytest.mark.parametrize("text", ["[]", "{", '{"num_done": "6"}'])
def test_a_damaged_summary_is_put_together_again(recipe, tmp_path, text):
    out = tmp_path / "bench"
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    (out / "summary.json").write_text(text)
    (out / "untrained" / "seed-0" / "recipe.toml").write_text("[")  # what it was made with
    with pytest.warns(UserWarning, match="summary.json must .* put together again from the folder"):
        assert current_summary(out) == found


@pytest.mark.parametrize(
    "harm", [[], {"options": []}, {"options": {"losses": 5}}, {"recipe": "x"}, {"kind": 1}]
)
def test_a_plan_with_other_kinds_of_values_is_refused(recipe, tmp_path, harm):
    join(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path)
    held = read_plan(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({**held, **harm} if harm else harm))
    with pytest.raises((ValueError, TypeError), match=r"plan.json|losses"):
        current_summary(tmp_path)


def test_a_unit_in_other_hands_is_left_to_them(recipe, tmp_path, monkeypatch):
    """A worker that was thought dead finds its unit taken: it stops that one and goes on."""
    monkeypatch.setattr(ledgers, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(workers, "BUSY_SECONDS", 0.1)
    out = tmp_path / "bench"
    real, stolen = units.train, []

    def stop_once(recipe, folder, **options):
        if stolen:
            return real(recipe, folder, **options)
        thief = Ledger(str(out / "ledger.sqlite3"), "study")
        claim = Claim("mf_cwms/seed-0", 2)
        assert thief._raised(claim)
        stolen.append(claim)
        with workers.StopRequest() as stop:
            wait_until(lambda: stop.wanted)
        thief.give_back(claim)
        raise StoppedError("told to stop")

    monkeypatch.setattr(units, "train", stop_once)
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    assert found["is_complete"]
    assert attempts(out)["mf_cwms/seed-0"] == 3


def test_a_folder_held_by_a_silent_worker_does_not_keep_the_others_from_work(
    recipe, tmp_path, monkeypatch
):
    from weiss._base.files import alone

    monkeypatch.setattr(workers, "BUSY_SECONDS", 0.2)
    out, said = tmp_path / "bench", []
    held = out / "untrained" / "seed-0"
    held.mkdir(parents=True)
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(words)))
    ready = threading.Event()

    def hold():
        with alone(held / "run"):
            ready.set()
            wait_until(lambda: any(line.startswith("[1/2] mf_cwms/seed-0") for line in said))

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait()
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out)
    holder.join()
    assert found["is_complete"]
    assert "still holds its folder" in said[0]


def test_an_ensemble_reads_the_data_where_this_machine_keeps_them(stripes, tmp_path, decoded):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(stripes, here)
    paths = sorted(path.relative_to(here) for path in here.rglob("*.png"))
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{p},{p.parent}\n" for p in paths))

    def plan(root):
        return small_check(tiny_recipe(listed, data__root=root, **QUICK), trials=1, repeats=1)

    out = tmp_path / "bench"
    found = carry_out(plan(here), out, quiet=True)
    assert decoded == [NUM_IMAGES]  # once for all runs and the ensemble
    shutil.rmtree(out / "ms" / "repeat-00" / "ensemble")
    here.rename(there)
    assert table(carry_out(plan(there), out, quiet=True)) == table(found)
    assert len(decoded) == 2  # decoded images do not outlast a command


def test_of_several_that_begin_at_once_all_take_the_first_plan(recipe, tmp_path, at_once):
    plans = [traditional(recipe, [loss], seeds=1) for loss in ("ms", "mf_cwms", "triplet")]
    found = at_once(lambda plan: join(plan, tmp_path / "bench"), plans)
    identity, plan = found[0][0].registered()
    assert set(plan["options"]["losses"]) == {"ms", "mf_cwms", "triplet"}
    assert read_plan(tmp_path / "bench")["id"] == identity
    assert not list((tmp_path / "bench").glob(".*"))


def test_a_plan_that_appears_at_the_last_moment_is_joined(recipe, tmp_path, monkeypatch):
    first, _ = join(traditional(recipe, ["ms"], seeds=1), tmp_path / "bench")
    calls = []

    def not_yet(out):
        calls.append(out)
        return read_plan(out) if len(calls) > 1 else None

    monkeypatch.setattr(folders, "read_plan", not_yet)
    second, grown = join(traditional(recipe, ["triplet"], seeds=1), tmp_path / "bench")
    assert second.registered()[0] == first.registered()[0]
    assert grown["options"]["losses"] == ["ms", "triplet"]
