"""Workers share a plan: real runs, real processes, some of them killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tiny import TIMES, begin, environment, settings, wait_until

from weiss.comparing import carry_out, current_summary, open_ledger, reality_check, traditional
from weiss.comparing.folder import read_plan
from weiss.runs import Run
from weiss.training import StoppedError

QUICK = {"train__epochs": 2, "train__warmup_epochs": 0, "train__batch_size": 8}


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


def bench(stripes, out, *options, protocol="reality-check", **changes):
    """Return the command line of a bench."""
    cache = {"data__cache": Path(out).parent / "cache"}  # where workers share decoded images
    said = [word for line in settings(**(QUICK | cache | changes)) for word in ("--set", line)]
    return [
        *(sys.executable, "-m", "weiss", "bench", protocol, str(stripes), "--out", str(out)),
        *map(str, options),
        *said,
    ]


def start(command, **options):
    return begin(command, stderr=subprocess.STDOUT, **options)


def finish(command):
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def summary_of(out):
    return json.loads((Path(out) / "summary.json").read_text())


def attempts(out):
    return open_ledger(Path(out), None, None).attempts()


@pytest.fixture(scope="session")  # tests that go to another process and back leave a module
def undisturbed(recipe, tmp_path_factory):
    """A small reality check, done by one worker without a break; only to be read."""
    out = tmp_path_factory.mktemp("undisturbed") / "bench"
    plan = reality_check(recipe, ["mf_cwms", "ms"], trials=2, repeats=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every test here, but this comes before what is a module's
    try:
        return out, carry_out(plan, out, quiet=True)
    finally:
        torch.set_num_threads(threads)


def test_a_bench_leaves_a_complete_table(undisturbed):
    out, found = undisturbed
    assert found["is_complete"]
    assert found["num_done"] == found["num_units"] == 50
    assert [row["title"] for row in found["rows"]] == ["untrained", "MFCWMS", "MS"]
    for row in found["rows"]:
        for how in ("separated", "concatenated"):
            for name in ("map_at_r", "precision_at_1", "r_precision"):
                score = row["scores"][f"{how}.{name}"]
                assert len(score["values"]) == 2
                assert score["low"] <= score["mean"] <= score["high"]
    assert {test["metric"] for test in found["tests"]} == {
        "concatenated.map_at_r",
        "separated.map_at_r",
    }
    assert found == json.loads((out / "summary.json").read_text())


def test_separated_is_the_mean_of_the_folds_and_concatenated_all_of_them(undisturbed):
    from weiss.evaluation import concatenate_embeddings, retrieval_metrics
    from weiss.training import embed_runs

    out, found = undisturbed
    runs = [out / "ms" / "repeat-01" / f"fold-{fold}" for fold in range(4)]
    tested = [Run(run).result()["test"]["map_at_r"] for run in runs]
    row = found["rows"][2]
    assert row["scores"]["separated.map_at_r"]["values"][1] == pytest.approx(sum(tested) / 4)
    embedded = embed_runs(runs, split="test")
    whole = concatenate_embeddings([each.embeddings for each in embedded])
    assert whole.shape[1] == 4 * 16
    metrics = retrieval_metrics(whole, embedded[0].table.labels)
    assert row["scores"]["concatenated.map_at_r"]["values"][1] == pytest.approx(metrics["map_at_r"])


def test_trials_never_see_the_test_set_and_leave_no_network(undisturbed):
    out, _ = undisturbed
    for run in sorted(out.glob("*/trial-*/fold-*")):
        assert "test" not in Run(run).result()
        assert not (run / "model.safetensors").exists()
    for run in sorted(out.glob("*/repeat-*/fold-*")):
        assert "test" in Run(run).result()
        assert (run / "model.safetensors").exists()
    assert not list(out.glob("*/*/*/state"))


def test_folds_validate_on_classes_that_do_not_train(undisturbed):
    out, _ = undisturbed
    facts = [Run(run).model_facts() for run in sorted(out.glob("ms/repeat-00/fold-*"))]
    trained = [set(each["class_names"]) for each in facts]
    assert all(len(classes) == 9 for classes in trained)
    everybody = set.union(*trained)
    assert len(everybody) == 12
    left_out = [everybody - classes for classes in trained]
    assert sum(map(len, left_out)) == 12
    assert set.union(*left_out) == everybody


def test_doing_it_again_does_nothing_again(undisturbed, recipe, tmp_path):
    out, found = undisturbed
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    before = attempts(copy)
    plan = reality_check(recipe, ["mf_cwms", "ms"], trials=2, repeats=2)
    again = carry_out(plan, copy, quiet=True)
    assert again == found
    assert attempts(copy) == before
    assert set(before.values()) == {1}


def test_a_finished_unit_redone_is_bit_identical(undisturbed, recipe, tmp_path):
    out, found = undisturbed
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    redone = ["ms/trial-001/fold-2", "mf_cwms/repeat-01/fold-0", "mf_cwms/trial-001/settings"]
    for key in [*redone, "mf_cwms/repeat-01/ensemble"]:
        shutil.rmtree(copy / key)
        open_ledger(copy, None, None).forget(key)
    plan = reality_check(recipe, ["mf_cwms", "ms"], trials=2, repeats=2)
    assert table(carry_out(plan, copy, quiet=True)) == table(found)
    for key in redone:
        old, new = (json.loads((top / key / "result.json").read_text()) for top in (out, copy))
        assert {k: v for k, v in old.items() if k not in TIMES} == {
            k: v for k, v in new.items() if k not in TIMES
        }
    model = "mf_cwms/repeat-01/fold-0/model.safetensors"
    from weiss._base.tensor_files import read_tensors

    old, new = (read_tensors(top / model)[0] for top in (out, copy))
    assert all((old[name] == new[name]).all() for name in {**old, **new})


def test_a_lost_ledger_costs_nothing_that_was_done(undisturbed, recipe, tmp_path):
    out, found = undisturbed
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "ledger.sqlite3").unlink()
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    plan = reality_check(recipe, ["mf_cwms", "ms"], trials=2, repeats=2)
    assert table(carry_out(plan, copy, quiet=True)) == table(found)
    assert times == {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}


def test_a_summary_of_what_lies_there_needs_no_ledger(undisturbed, tmp_path):
    out, found = undisturbed
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "ledger.sqlite3").unlink()
    shutil.rmtree(copy / "ms" / "repeat-01")
    (copy / "summary.json").unlink()
    part = current_summary(copy)
    assert not part["is_complete"]
    assert part["num_done"] == 45
    assert len(part["rows"][2]["scores"]["concatenated.map_at_r"]["values"]) == 1
    assert part["rows"][2]["scores"]["concatenated.map_at_r"]["low"] is None
    assert table(part)[:2] == table(found)[:2]


@pytest.mark.dist
def test_two_workers_give_the_table_of_one_and_do_nothing_twice(undisturbed, stripes, tmp_path):
    _, found = undisturbed
    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms,ms", "--trials", 2, "--repeats", 2, "--workers", 2]
    said = finish(bench(stripes, out, *options))
    assert table(summary_of(out)) == table(found)
    assert set(attempts(out).values()) == {1}
    assert len(attempts(out)) == 50
    assert "[50/50]" in said


def killed_until_done(command, seed):
    """Kill it and its workers at random and start again; return how often, at most six times."""
    import psutil

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
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_at_random_and_restarted_the_table_is_the_same(
    undisturbed, stripes, tmp_path, workers
):
    _, found = undisturbed
    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms,ms", "--trials", 2, "--repeats", 2, "--workers", workers]
    command = bench(stripes, out, *options, train__checkpoint_seconds=0)
    kills = killed_until_done(command, workers)
    assert kills >= 2
    assert table(summary_of(out)) == table(found)


@pytest.mark.dist
@pytest.mark.slow
def test_a_kill_in_mid_unit_costs_that_unit_only(recipe, stripes, tmp_path):
    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms", "--seeds", 2]
    command = bench(stripes, out, *options, protocol="traditional", train__epochs=40)
    process = start(command)
    wait_until(lambda: Run(out / "mf_cwms" / "seed-1").metrics())
    process.kill()
    process.communicate()
    before = attempts(out)
    finish(command)
    after = attempts(out)
    assert {key for key in after if after[key] > 1} == {"mf_cwms/seed-1"}
    assert before["mf_cwms/seed-0"] == after["mf_cwms/seed-0"] == 1
    assert summary_of(out)["is_complete"]


@pytest.mark.dist
def test_the_units_of_a_killed_worker_go_to_the_others(stripes, tmp_path):
    import psutil

    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms,ms", "--seeds", 3, "--workers", 2]
    process = start(bench(stripes, out, *options, protocol="traditional", train__epochs=6))
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    wait_until(lambda: lines)
    psutil.Process(process.pid).children()[0].kill()
    assert process.wait(120) == 0
    reader.join()
    process.stdout.close()
    said = b"".join(lines).decode()
    assert "was killed (signal 9)" in said
    found = summary_of(out)
    assert found["is_complete"]
    assert len(attempts(out)) == 9
    assert sum(attempts(out).values()) <= 10  # one unit more than there are, at most


@pytest.mark.dist
def test_stopping_gives_the_unit_back_and_says_how_to_go_on(stripes, tmp_path):
    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms", "--seeds", 2]
    command = bench(stripes, out, *options, protocol="traditional", train__epochs=5000)
    process = start(command)
    wait_until(lambda: Run(out / "mf_cwms" / "seed-0").metrics())
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0].decode()
    assert process.returncode == StoppedError.exit_code, said
    assert "Go on by the same" in said
    assert not summary_of(out)["is_complete"]


def test_a_seed_that_fails_does_not_stop_the_others_and_is_tried_again(
    recipe, tmp_path, monkeypatch, undrawn
):
    from weiss.comparing import units

    real, broken = units.train, [True]

    def train(recipe, out, **options):
        if broken[0] and str(out).endswith("seed-1"):
            raise RuntimeError("no luck today")
        return real(recipe, out, **options)

    monkeypatch.setattr(units, "train", train)
    plan = traditional(recipe, ["mf_cwms"], seeds=3)
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    row = found["rows"][1]
    assert row["failed"] == {"mf_cwms/seed-1": "RuntimeError: no luck today"}
    assert row["repetitions"] == [0, 2]
    assert not found["is_complete"]
    broken[0] = False
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    assert found["is_complete"]
    assert found["rows"][1]["repetitions"] == [0, 1, 2]


def test_a_trial_whose_loss_is_not_finite_scores_zero_and_the_search_goes_on(
    recipe, tmp_path, monkeypatch, undrawn
):
    from weiss.comparing import units
    from weiss.training import NotFiniteError

    real = units.train

    def train(recipe, out, **options):
        if "trial-001" in str(out):
            raise NotFiniteError("the loss must stay finite; it was nan")
        return real(recipe, out, **options)

    monkeypatch.setattr(units, "train", train)
    plan = reality_check(recipe, ["ms"], trials=3, repeats=1)
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    trials = found["rows"][1]["trials"]
    assert [trial["value"] == 0 for trial in trials] == [False, True, False]
    assert "it was nan" in trials[1]["failed"]
    assert found["is_complete"]


def test_a_lost_device_is_not_the_fault_of_the_settings(recipe, tmp_path, monkeypatch):
    from weiss.comparing import units

    def train(recipe, out, **options):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(units, "train", train)
    unit = units.trial("ms/trial-000/fold-0", lambda: recipe)
    with pytest.raises(RuntimeError, match="CUDA error"):
        unit.work(tmp_path)
    assert unit.found(tmp_path) is None


def test_a_comparison_may_grow_but_not_change(recipe, tmp_path, undrawn):
    out = tmp_path / "bench"
    carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    found = carry_out(traditional(recipe, ["ms"], seeds=2), out, quiet=True)
    assert [row["name"] for row in found["rows"]] == ["untrained", "mf_cwms", "ms"]
    assert all(row["repetitions"] == [0, 1] for row in found["rows"])
    assert attempts(out)["mf_cwms/seed-0"] == 1
    other = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"lr": 0.5})})
    with pytest.raises(ValueError, match=r"other settings.*\n  optim.lr: 0.01 -> 0.5\n.*the same"):
        carry_out(traditional(other, ["mf_cwms"], seeds=2), out, quiet=True)
    with pytest.raises(ValueError, match="it holds 'traditional'. Choose another folder"):
        carry_out(reality_check(recipe, ["ms"], trials=1, repeats=1), out, quiet=True)
    elsewhere = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"device": "auto"})}
    )
    assert carry_out(traditional(elsewhere, ["mf_cwms"], seeds=2), out, quiet=True)["is_complete"]


def test_fewer_trials_than_there_were_are_another_comparison(undisturbed, recipe, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed[0], copy)
    with pytest.raises(ValueError, match="trials: 2 -> 3"):
        carry_out(reality_check(recipe, ["ms"], trials=3, repeats=2), copy, quiet=True)


def test_a_storage_of_another_study_is_refused(recipe, tmp_path, undrawn):
    storage = str(tmp_path / "shared.sqlite3")
    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    carry_out(plan, tmp_path / "a" / "bench", storage=storage, quiet=True)
    with pytest.raises(ValueError, match="under the name 'bench' belongs to another folder"):
        carry_out(plan, tmp_path / "b" / "bench", storage=storage, quiet=True)
    assert not (tmp_path / "b" / "bench").exists()
    found = carry_out(plan, tmp_path / "b" / "bench", storage=storage, study="mine", quiet=True)
    assert found["is_complete"]


def test_a_run_folder_and_a_broken_plan_are_refused(recipe, tmp_path, undrawn):
    from weiss.training import measure_untrained

    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    measure_untrained(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="is a run itself"):
        carry_out(plan, tmp_path / "run", quiet=True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "plan.json").write_text('{"id": ')
    with pytest.raises(ValueError, match="must be the plan of a comparison"):
        carry_out(plan, tmp_path / "broken", quiet=True)
    with pytest.raises(ValueError, match="holds no plan.json"):
        current_summary(tmp_path)
    with pytest.raises(ValueError, match="--workers must be"):
        carry_out(plan, tmp_path / "new", workers=0)
    assert not (tmp_path / "new").exists()


@pytest.mark.dist
@pytest.mark.postgres
def test_machines_that_share_a_server_share_the_work(undisturbed, stripes, tmp_path, postgres):
    """Three commands at once, of which one is killed, against a real PostgreSQL server."""
    _, found = undisturbed
    out = tmp_path / f"bench{os.getpid()}"
    options = ["--losses", "mf_cwms,ms", "--trials", 2, "--repeats", 2, "--storage", postgres]
    command = bench(stripes, out, *options)
    machines = [start(command) for _ in range(3)]
    time.sleep(6)
    machines[1].kill()
    said = [machine.communicate(timeout=240)[0].decode() for machine in machines]
    assert machines[0].returncode == machines[2].returncode == 0, said
    assert table(summary_of(out)) == table(found)
    assert read_plan(out)["kind"] == "reality-check"
    ledger = open_ledger(out, postgres, None)
    assert len(ledger.attempts()) == 50
    assert sum(ledger.attempts().values()) <= 51


@pytest.mark.dist
@pytest.mark.postgres
def test_a_server_that_restarts_in_the_middle_is_waited_for(stripes, tmp_path, server):
    out = tmp_path / f"restart{os.getpid()}"
    options = ["--losses", "mf_cwms", "--seeds", 4, "--storage", server.address, "--workers", 2]
    process = start(bench(stripes, out, *options, protocol="traditional", train__epochs=8))
    for line in process.stdout:
        if b"[2/8]" in line:
            break
    server.stop()
    time.sleep(4)
    server.start()
    said = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 0, said
    assert "waiting for the storage" in said
    assert summary_of(out)["is_complete"]


def test_a_storage_that_does_not_answer_for_a_moment_is_asked_again(
    recipe, tmp_path, monkeypatch, undrawn
):
    from weiss.comparing import workers
    from weiss.comparing.ledger import Ledger, StorageError

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


@pytest.mark.dist
@pytest.mark.slow
def test_workers_do_not_outlive_their_command(stripes, tmp_path):
    import psutil

    out = tmp_path / "bench"
    options = ["--losses", "mf_cwms,ms", "--seeds", 20, "--workers", 2]
    process = start(bench(stripes, out, *options, protocol="traditional"))
    process.stdout.readline()
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    process.stdout.close()
    process.wait()
    assert not alive
    assert len(summary_keys(out)) < 60


def summary_keys(out):
    return open_ledger(Path(out), None, None).results()


def test_a_unit_in_other_hands_is_left_to_them(recipe, tmp_path, monkeypatch, undrawn):
    """A worker that was thought dead finds its unit taken: it stops that one and goes on."""
    from weiss.comparing import liveness, units, workers
    from weiss.comparing.ledger import Ledger

    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(workers, "BUSY_SECONDS", 0.1)
    out = tmp_path / "bench"
    real, stolen = units.train, []

    def train(recipe, folder, **options):
        if not stolen and folder.name == "seed-0":
            thief = Ledger(str(out / "ledger.sqlite3"), "study")
            rows, _ = thief._rows()
            claim = workers.Claim("mf_cwms/seed-0", rows["mf_cwms/seed-0"].attempts + 1)
            assert thief._raised(claim)
            stolen.append((thief, claim))
            with workers.StopRequest() as stop:
                end = time.monotonic() + 20
                while not stop.wanted and time.monotonic() < end:
                    time.sleep(0.01)
            thief.give_back(claim)
            raise StoppedError("told to stop")
        return real(recipe, folder, **options)

    monkeypatch.setattr(units, "train", train)
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=2), out, quiet=True)
    assert stolen
    assert found["is_complete"]
    assert attempts(out)["mf_cwms/seed-0"] == 3


def test_what_the_folder_has_lost_is_done_again(undisturbed, recipe, tmp_path):
    out, found = undisturbed
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "ms" / "repeat-01" / "ensemble")
    shutil.rmtree(copy / "ms" / "repeat-01" / "fold-1")
    plan = reality_check(recipe, ["mf_cwms", "ms"], trials=2, repeats=2)
    again = carry_out(plan, copy, quiet=True)
    assert again["is_complete"]
    assert table(again) == table(found)


def test_the_summary_is_that_of_all_that_was_asked_for(recipe, tmp_path, undrawn):
    """A command that ends last, but asked for less, does not take rows away."""
    from weiss.comparing.folder import join

    out = tmp_path / "bench"
    small, large = (
        traditional(recipe, ["ms"], seeds=1),
        traditional(recipe, ["ms", "mf_cwms"], seeds=2),
    )
    join(small, out)
    carry_out(large, out, quiet=True)
    found = carry_out(small, out, quiet=True)
    assert [row["name"] for row in found["rows"]] == ["untrained", "ms", "mf_cwms"]
    assert found["rows"][2]["repetitions"] == [0, 1]


def test_a_changed_search_space_is_refused_and_a_new_one_taken(undisturbed, recipe, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed[0], copy)
    spaces = tmp_path / "spaces.toml"
    spaces.write_text("[ms]\nalpha = { low = 1.0, high = 2.0 }\n")
    plan = reality_check(recipe, ["ms"], trials=2, repeats=2, spaces=spaces)
    with pytest.raises(ValueError, match=r"spaces\.ms: .*0\.01.* -> .*2\.0"):
        carry_out(plan, copy, quiet=True)


def test_a_folder_held_by_a_silent_worker_does_not_keep_the_others_from_work(
    recipe, tmp_path, monkeypatch, undrawn
):
    from weiss._base.files import alone
    from weiss.comparing import workers

    monkeypatch.setattr(workers, "BUSY_SECONDS", 1.0)
    out, said = tmp_path / "bench", []
    held = out / "untrained" / "seed-0"
    held.mkdir(parents=True)
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(words)))
    ready = threading.Event()

    def hold():
        with alone(held / "run"):
            ready.set()
            wait_until(lambda: said)

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait()
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=2), out)
    holder.join()
    assert found["is_complete"]
    assert "still holds its folder" in said[0]
    assert said[1].startswith("[1/4] mf_cwms/seed-0")


def test_a_passing_fault_of_the_machine_is_not_a_score(recipe, tmp_path, monkeypatch, undrawn):
    from weiss.comparing import units

    real, faults = units.train, iter([True, False, False])

    def train(recipe, folder, **options):
        if next(faults):
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal")
        return real(recipe, folder, **options)

    monkeypatch.setattr(units, "train", train)
    result = units.trial("k", lambda: recipe).work(tmp_path / "one")
    assert result["map_at_r"] > 0


def test_what_fails_twice_in_a_row_is_a_failed_trial(recipe, tmp_path, monkeypatch):
    from weiss.comparing import units

    def train(recipe, folder, **options):
        raise RuntimeError("these settings do not work")

    monkeypatch.setattr(units, "train", train)
    unit = units.trial("k", lambda: recipe)
    assert "these settings" in unit.work(tmp_path / "one")["failed"]
    assert "these settings" in unit.found(tmp_path / "one")["failed"]


def test_an_ensemble_reads_the_data_where_this_machine_keeps_them(stripes, tmp_path, undrawn):
    from tiny import tiny_recipe

    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(stripes, here)
    paths = sorted(path.relative_to(here) for path in here.rglob("*.png"))
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{p},{p.parent}\n" for p in paths))

    def plan(root):
        quick = {"train__epochs": 1, "train__warmup_epochs": 0, "train__batch_size": 8}
        recipe = tiny_recipe(listed, data__root=root, **quick)
        return reality_check(recipe, ["ms"], trials=1, repeats=1)

    out = tmp_path / "bench"
    found = carry_out(plan(here), out, quiet=True)
    shutil.rmtree(out / "ms" / "repeat-00" / "ensemble")
    here.rename(there)
    assert table(carry_out(plan(there), out, quiet=True)) == table(found)


def test_data_with_a_part_for_validation_are_refused(stripes, tmp_path):
    from tiny import tiny_recipe

    paths = sorted(path.relative_to(stripes) for path in stripes.rglob("*.png"))
    parts = {f"class{n}": "train" if n < 10 else "valid" if n < 14 else "test" for n in range(20)}
    listed = tmp_path / "list.csv"
    lines = [f"{path},{path.parent},{parts[str(path.parent)]}\n" for path in paths]
    listed.write_text("path,label,split\n" + "".join(lines))
    recipe = tiny_recipe(listed, data__root=stripes, data__split="given", train__batch_size=8)
    with pytest.raises(ValueError, match="no part 'valid' of its own"):
        reality_check(recipe, ["ms"], trials=1, repeats=1).check()


@pytest.mark.parametrize("has_links", [True, False])
def test_of_several_that_begin_at_once_all_take_the_first_plan(
    recipe, tmp_path, monkeypatch, has_links
):
    from weiss.comparing import folder

    def no_links(*_):
        raise OSError("not supported")

    if not has_links:
        monkeypatch.setattr(folder.os, "link", no_links)
    plans = [traditional(recipe, [loss], seeds=1) for loss in ("ms", "mf_cwms", "triplet")]
    found, start = [], threading.Barrier(3)

    def begin(plan):
        start.wait()
        found.append(folder.join(plan, tmp_path / "bench"))

    threads = [threading.Thread(target=begin, args=[plan]) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    held = read_plan(tmp_path / "bench")
    assert set(found[0][0].registered()[1]["options"]["losses"]) == {"ms", "mf_cwms", "triplet"}
    assert held["id"] == found[0][0].registered()[0]
    assert not list((tmp_path / "bench").glob("*.tmp"))
