"""One recipe with several seeds: a run for each, and a mean that says how sure it is."""

import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import asdict

import numpy as np
import psutil
import pytest
from tiny import assert_same_run, command, tiny_recipe, wait_until
from typed import weiss
from typer.testing import CliRunner

from weiss import cli
from weiss.evaluation.statistics import t_interval
from weiss.runs import Run
from weiss.training import StoppedError, results, train, train_seeds

pytestmark = pytest.mark.usefixtures("undrawn")


def stamps(folder):
    return {p: p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


def test_seeds_are_runs_whose_mean_and_interval_are_students(stripes, tmp_path, run):
    out = tmp_path / "seeds"
    done = CliRunner().invoke(cli.app, command(stripes, out, "--seeds", 3))
    assert done.exit_code == 0, done.exception
    found = json.loads((out / "summary.json").read_text())
    assert f"Wrote {out / 'summary.json'}" in done.stdout.replace("\n", "")
    assert f"{100 * found['map_at_r']['mean']:.2f}" in done.stdout
    assert done.stdout.count("epoch 3/3") == 3
    assert found["runs"] == ["seed-0", "seed-1", "seed-2"]
    assert sorted(p.name for p in out.iterdir()) == [*found["runs"], "summary.json"]
    for name in ("map_at_r", "r_precision", "precision_at_1"):
        values = [Run(out / each).result()[name] for each in found["runs"]]
        assert found[name] == {"values": values, **asdict(t_interval(np.array(values)))}
    assert len(set(found["map_at_r"]["values"])) == 3
    assert len({Run(out / each).metrics()[0]["loss"] for each in found["runs"]}) == 3
    # Each is the run that its seed alone would give.
    assert_same_run(out / "seed-2", run("alone", seed=2))


def test_seeds_begin_with_the_recipes_own_and_decode_their_images_once(stripes, tmp_path, decoded):
    found = train_seeds(tiny_recipe(stripes, seed=5, train__epochs=1), tmp_path, 2, quiet=True)
    assert found["runs"] == ["seed-5", "seed-6"]
    assert len(decoded) == 1


def test_resuming_completes_what_is_missing_and_leaves_the_rest(stripes, tmp_path):
    recipe, out = tiny_recipe(stripes, train__epochs=1), tmp_path / "seeds"
    train_seeds(recipe, out, 2, quiet=True)
    before = stamps(out / "seed-0") | stamps(out / "seed-1")
    with pytest.raises(ValueError, match="without runs of these seeds; .* add --resume"):
        train_seeds(recipe, out, 3, quiet=True)
    found = train_seeds(recipe, out, 3, resume=True, quiet=True)
    assert len(found["map_at_r"]["values"]) == 3
    assert stamps(out / "seed-0") | stamps(out / "seed-1") == before


@pytest.mark.dist
def test_seeds_at_the_same_time_are_seeds_in_turn_and_one_that_fails_stops_no_other(
    stripes, tmp_path
):
    recipe, in_turn, out = tiny_recipe(stripes), tmp_path / "in_turn", tmp_path / "together"
    train_seeds(recipe, in_turn, 2, quiet=True)
    # A run of another recipe cannot be resumed; one of this recipe with fewer epochs can.
    train(tiny_recipe(stripes, train__epochs=1, optim__lr=0.5), out / "seed-0", quiet=True)
    train(tiny_recipe(stripes, train__epochs=2, seed=1), out / "seed-1", quiet=True)
    with pytest.raises(RuntimeError, match="every seed must finish; 1 of 2 did not") as error:
        train_seeds(recipe, out, 2, workers=2, resume=True, quiet=True)
    said = str(error.value)
    assert "seed-0: Error: " in said
    assert "optim.lr: 0.5 -> 0.01" in said
    assert "add --resume" in said
    assert "Traceback" not in said
    assert not (out / "summary.json").exists()
    assert_same_run(out / "seed-1", in_turn / "seed-1")
    before = stamps(out / "seed-1")
    shutil.rmtree(out / "seed-0")
    found = train_seeds(recipe, out, 2, resume=True, quiet=True)
    assert_same_run(out / "seed-0", in_turn / "seed-0")
    assert stamps(out / "seed-1") == before
    summary = json.loads((in_turn / "summary.json").read_text())
    for name in ("map_at_r", "r_precision", "precision_at_1", "epoch"):
        assert found[name] == summary[name]
    assert not list(out.glob(".*"))


def test_wrong_numbers_and_the_folder_of_a_run_are_refused(stripes, tmp_path, finished):
    recipe = tiny_recipe(stripes)
    with pytest.raises(ValueError, match="--seeds must be at least 2"):
        train_seeds(recipe, tmp_path / "out", 1)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        train_seeds(recipe, tmp_path / "out", 2, workers=0)
    with pytest.raises(ValueError, match="must name a folder for several runs"):
        train_seeds(recipe, finished, 2)


def test_chosen_on_held_out_classes_the_score_on_the_test_set_is_summarised(stripes, tmp_path):
    held = {"evaluate__on": "held_out", "evaluate__folds": 3, "train__batch_size": 8}
    summary = train_seeds(tiny_recipe(stripes, train__epochs=1, **held), tmp_path, 2, quiet=True)
    values = [Run(tmp_path / f"seed-{n}").result()["test"]["map_at_r"] for n in (0, 1)]
    assert summary["test.map_at_r"]["values"] == values


def test_seeds_are_resumed_by_their_folder_and_number(stripes, tmp_path):
    train_seeds(tiny_recipe(stripes, train__epochs=1, seed=3), tmp_path / "s", 2, quiet=True)
    done = weiss("train", "--resume", "--out", tmp_path / "s")
    assert "--seeds must be given again" in " ".join(done.stderr.split())
    assert not (tmp_path / "s" / "recipe.toml").exists()
    done = weiss("train", "--resume", "--out", tmp_path / "s", "--seeds", 3)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "s").glob("seed-*")) == ["seed-3", "seed-4", "seed-5"]


def test_ctrl_c_while_a_seed_writes_its_result_stops_before_the_next(
    stripes, tmp_path, monkeypatch
):
    monkeypatch.setattr(results, "draw", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(StoppedError, match="--resume --out .* --seeds 2"):
        train_seeds(tiny_recipe(stripes, train__epochs=1), tmp_path, 2, quiet=True)
    assert Run(tmp_path / "seed-0").is_finished()
    assert not (tmp_path / "seed-1").exists()


@pytest.mark.dist
def test_ctrl_c_lets_seeds_at_the_same_time_save_and_tells_how_to_resume(stripes, tmp_path):
    recipe, out = tiny_recipe(stripes, train__epochs=2000), tmp_path / "out"
    runs = [Run(out / f"seed-{number}") for number in (0, 1)]
    sessions = []

    def interrupt():
        try:
            wait_until(lambda: all(run.metrics() for run in runs))
            # Other tests of this process may have left a decoder, which is a child too.
            children = [c for c in psutil.Process().children() if "train" in c.cmdline()]
            sessions.extend(os.getsid(child.pid) == child.pid for child in children)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(StoppedError, match=f"Resume with: .* --resume --out {out} --seeds 3"):
        train_seeds(recipe, out, 3, workers=2, quiet=True)
    thread.join()
    # In sessions of their own: a terminal's Ctrl-C, to all of a group, does not reach them twice.
    assert sessions == [True, True]
    for run in runs:
        assert run.checkpoints.newest() is not None
        assert not run.is_finished()
    assert not (out / "seed-2").exists()


def test_a_second_ctrl_c_ends_seeds_that_do_not_stop(stripes, tmp_path, monkeypatch):
    python, told = tmp_path / "python", tmp_path / "told"
    lines = (f"trap 'touch {told}' TERM", f"touch {tmp_path}/begun-$$", "while :; do sleep 1; done")
    python.write_text("\n".join(["#!/bin/sh", *lines]))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    def interrupt():
        for seen in (lambda: len(list(tmp_path.glob("begun-*"))) == 2, told.exists):
            wait_until(seen)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train_seeds(tiny_recipe(stripes), tmp_path / "out", 3, workers=2)
    thread.join()
    assert len(list(tmp_path.glob("begun-*"))) == 2  # and the third does not begin
    assert not [c for c in psutil.Process().children() if str(python) in c.cmdline()]
