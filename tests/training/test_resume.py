"""A run that was stopped or killed and then resumed is the run that was not: to the last bit."""

import json
import shutil
import signal
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import psutil
import pytest
import torch
from tiny import assert_same_run, begin, command, damage, metrics, traces, wait_until
from typed import weiss

from weiss.runs import Run, recipe_from
from weiss.runs.evaluator import Evaluator
from weiss.training import StoppedError, evaluate_run, preparation, trainer
from weiss.training.resuming import kept_network
from weiss.training.state import Position
from weiss.training.step import Stepper

VARIANTS = {
    "adamw": {},
    "cosine": {"schedule__name": "cosine"},
    "rmsprop": {"optim__name": "rmsprop", "optim__lr": 1e-3},
    "sgd": {"optim__name": "sgd", "optim__class_lr": 0.5},
    "sgd without momentum": {"optim__name": "sgd", "optim__momentum": 0},
    "alternating": {"fields__how": "alternating", "fields__every": 2, "train__epochs": 3},
    "class_mean": {"fields__how": "class_mean"},
    "pairs in parts": {"loss__name": "contrastive", "train__accumulate": 2, "train__per_class": 2},
    "proxies": {"loss__name": "proxy_anchor"},
    "dropout": {"train__accumulate": 2},
    "held out": {"evaluate__on": "held_out", "evaluate__folds": 3, "train__batch_size": 8},
    "bf16": {"train__precision": "bf16"},
    "skipped pairs": {
        "loss__name": "mf_contrastive",
        "loss__impl": "streaming",
        "loss__skip": "on",
    },
    "features": {
        "backbone__train": "frozen",
        "augment__views": 2,
        "fields__start": "class_means",
    },
    "several fields": {"loss__fields_per_class": 2, "fields__start": "class_means"},
    "prefixes": {"backbone__dimensions": [8, 4, 2], "backbone__embedding_size": 8},
    "stages after features": {
        "backbone__train": "last:1",
        "train__warmup_on": "features",
        "optim__layer_decay": 0.5,
    },
}
STEPS = {"train__epochs": 2, "schedule__every": 1, "schedule__gamma": 0.7}


class Killed(BaseException):
    """The process is killed here."""


def with_dropout(section, *, real=preparation.build_backbone, **options):
    """Build a network that also depends on random numbers in every step."""
    model = real(section, **options)
    model.pooling = torch.nn.Sequential(model.pooling, torch.nn.Dropout(0.3))
    return model


@pytest.fixture
def stops(monkeypatch):
    """Let somebody stop the run when a method is called, and expect that it stops."""

    @contextmanager
    def at(owner, name, when=lambda *_: True, match="the state is saved"):
        real = getattr(owner, name)

        def method(*given, **options):
            if when(*given):
                signal.raise_signal(signal.SIGINT)
            return real(*given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, method)
            with pytest.raises(StoppedError, match=match):
                yield

    return at


def until_finished(run, changes, most=60):
    """Resume a run until nobody stops it; return how often somebody did."""
    for stops in range(most):
        try:
            run("stopped", resume=stops > 0, **changes)
        except StoppedError:
            continue
        return stops
    raise AssertionError(f"not finished after {most} stops")


@pytest.mark.parametrize(
    ("variant", "number"),
    [("adamw", signal.SIGTERM), *((variant, signal.SIGINT) for variant in VARIANTS)],
)
def test_a_run_stopped_after_every_step_is_the_run_that_was_not(
    run, tmp_path, monkeypatch, variant, number
):
    changes = {**STEPS, **VARIANTS[variant], "data__cache": tmp_path / "cache"}
    if variant == "dropout":
        monkeypatch.setattr(preparation, "build_backbone", with_dropout)
    whole = run("whole", **changes)

    def step(stepper, images, labels, real=Stepper.__call__):
        found = real(stepper, images, labels)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # features are computed again
        signal.raise_signal(number)
        return found

    monkeypatch.setattr(Stepper, "__call__", step)
    stops = until_finished(run, changes)
    assert stops == Run(whole).result()["steps"]
    assert_same_run(whole.parent / "stopped", whole)


@pytest.mark.parametrize("variant", ["cosine", "alternating", "class_mean", "held out"])
def test_a_run_stopped_whenever_it_embeds_is_the_run_that_was_not(run, monkeypatch, variant):
    """Before training, in evaluation, when fields are solved for, when the test set is used."""
    changes = {**STEPS, **VARIANTS[variant], "evaluate__batch_size": 5}
    whole = run("whole", **changes)
    places = set()

    def embed(evaluator, model, rows, *, real=Evaluator.embed, watch=lambda: None, **options):
        training = watch.__self__
        place = (training.at.epoch, training.at.step, len(rows))
        batches = iter(range(100))

        def watched():
            # In the second batch, once at each place.
            if next(batches) == 1 and place not in places:
                places.add(place)
                signal.raise_signal(signal.SIGINT)
            watch()

        return real(evaluator, model, rows, watch=watched, **options)

    monkeypatch.setattr(Evaluator, "embed", embed)
    stops = until_finished(run, changes)
    assert stops == {"alternating": 6, "class_mean": 4, "held out": 4}.get(variant, 3)
    assert_same_run(whole.parent / "stopped", whole)


def test_a_run_killed_between_model_and_state_is_the_run_that_was_not(run, monkeypatch):
    """The best network is written by itself; what was written after the state is measured anew."""
    changes = {**STEPS, "train__checkpoint_seconds": 0, "train__epochs": 4}
    whole = run("whole", **changes)
    written = []

    def write(self, *model, real=Run.write_model):
        real(self, *model)
        if "stopped" in str(self.folder):
            written.append(self.folder)
            raise Killed

    monkeypatch.setattr(Run, "write_model", write)
    for attempt in range(20):
        try:
            run("stopped", resume=attempt > 0, **changes)
            break
        except Killed:
            continue
    assert len(written) == attempt >= 2
    assert_same_run(whole.parent / "stopped", whole)


def test_a_damaged_state_is_passed_over_and_the_run_ends_the_same(run, stops):
    changes = {**STEPS, "train__checkpoint_seconds": 0}
    whole = run("whole", **changes)
    calls = iter(range(1, 9))
    with stops(Stepper, "__call__", lambda *_: next(calls) == 5, "epoch 2 after step 2"):
        run("stopped", **changes)
    folder = whole.parent / "stopped"
    older, newest = Run(folder).checkpoints.files()
    assert (int(older.stem), int(newest.stem)) == (4, 5)
    damage(newest)
    with pytest.warns(UserWarning, match="is damaged.* The state before it is used"):
        run("stopped", resume=True, **changes)
    assert_same_run(folder, whole)


def newest(folder):
    """The steps of the newest state of a run, 0 where there is none."""
    return max((int(path.stem) for path in Run(folder).checkpoints.files()), default=0)


def test_a_process_killed_within_an_epoch_is_the_run_that_was_not(run, stripes, tmp_path):
    folder = tmp_path / "killed"
    changes = {"train__epochs": 5000, "train__checkpoint_seconds": 0, "schedule__every": 20}
    words = command(stripes, folder, "--quiet", **changes)
    process = begin([sys.executable, "-m", "weiss", *words], text=True)

    def is_held():
        """Suspend it, unless its newest state lies between two epochs of three steps."""
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        if newest(folder) % 3:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    wait_until(lambda: newest(folder) or process.poll() is not None)
    wait_until(is_held)
    process.kill()
    assert "Traceback" not in process.communicate()[1]
    changes |= {"train__epochs": newest(folder) // 3 + 2}
    run("killed", resume=True, **changes)
    assert len(Run(folder).metrics()) == changes["train__epochs"]
    assert_same_run(folder, run("whole", **changes))


def test_ctrl_c_saves_the_state_and_tells_how_to_resume(stripes, tmp_path, undrawn, monkeypatch):
    def step(stepper, images, labels, real=Stepper.__call__):
        signal.raise_signal(signal.SIGINT)
        return real(stepper, images, labels)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", step)
        done = weiss(*command(stripes, folder))
    assert done.returncode == 130
    assert " ".join(done.stderr.split()) == (
        "Stopped: in epoch 1 after step 1; the state is saved. Resume with: weiss train --resume "
        f"--out {folder}"
    )
    assert list(folder.rglob(".*")) == []
    done = weiss("train", "--resume", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "Resuming in epoch 1 after step 1." in done.stdout


def test_a_stop_while_the_test_set_is_looked_at_leaves_the_state_alone(run, stops):
    changes = {"evaluate__on": "held_out", "evaluate__folds": 3, "seed": 2}
    whole = run("whole", train__epochs=6, **changes)
    assert Run(whole).result()["epoch"] < 6  # the best network is not the last
    with stops(Evaluator, "evaluate_prefixes", lambda evaluator, model, split, *_: split == "test"):
        run("stopped", train__epochs=6, **changes)
    stopped = whole.parent / "stopped"
    (one,), (two,) = (Run(folder).checkpoints.files() for folder in (whole, stopped))
    first, second = (Run(f).checkpoints.newest().tensors for f in (whole, stopped))
    assert one.name == two.name
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_a_finished_run_can_be_prolonged(run, monkeypatch):
    """Killed between its last state and its result; the result of fewer epochs is not taken."""
    folder, more = run(train__epochs=2), {"train__patience": 7, "train__graphs": "false"}
    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_result", killed)
        with pytest.raises(Killed):
            run(train__epochs=4, resume=True, **more)
    assert not Run(folder).is_finished()
    run(train__epochs=4, resume=True, **more)
    recipe = recipe_from(str(folder)).train
    assert (recipe.epochs, recipe.patience, recipe.graphs) == (4, 7, False)
    assert_same_run(folder, run("whole", train__epochs=4))


def killed(*_, **__):
    raise Killed


@pytest.mark.parametrize("harm", ["missing", "cut off", "a bit"])
def test_a_lost_model_is_written_again_from_the_state_if_that_has_it(run, harm):
    """By a seed whose last epoch is the best one."""
    folder = run(train__epochs=2, seed=3)
    whole = traces(folder)
    assert whole["result"]["epoch"] == 2
    harmed(folder / "model.safetensors", harm)
    with pytest.warns(UserWarning, match="model.safetensors .* written again from the state, .* 2"):
        run(train__epochs=2, seed=3, resume=True)
    assert traces(folder) == whole
    harmed(folder / "model.safetensors", harm)
    with pytest.warns(UserWarning, match="model.safetensors .* written again from the state, .* 2"):
        run(train__epochs=4, seed=3, resume=True)
    assert_same_run(folder, run("whole", train__epochs=4, seed=3))


@pytest.mark.parametrize("harm", [{"metrics": None}, {"metrics": {}}, {"epoch": None}])
def test_a_model_without_its_facts_is_named_and_not_used(harm):
    line = {"epoch": 1, "evaluation": {"map_at_r": 0.5}}
    facts = {"epoch": 1, "metrics": line["evaluation"], "seconds": 1.0}
    at = Position(history=[line])
    found = [
        kept_network(SimpleNamespace(model_facts=lambda facts=each: facts), at, "map_at_r")
        for each in (facts, facts | harm)
    ]
    assert found[0] == (facts, "")
    assert found[1][0] is None
    assert "lacks its epoch, its seconds or its map_at_r" in found[1][1]


def test_a_model_that_no_file_has_any_more_is_replaced_and_said_to_be_lost(run):
    """By a seed whose first epoch is the best one: no state has that network."""
    folder = run(train__epochs=2)
    assert Run(folder).result()["epoch"] == 1
    damage(folder / "model.safetensors")
    lost = "which is that of epoch 2. The best network so far, of epoch 1, is lost"
    with pytest.warns(UserWarning, match=lost):
        run(train__epochs=2, resume=True)
    result = Run(folder).result()
    assert result["epoch"] == Run(folder).model_facts()["epoch"] == 2
    assert result["map_at_r"] == Run(folder).metrics()[1]["evaluation"]["map_at_r"]
    assert evaluate_run(folder).summary()["map_at_r"] == result["map_at_r"]


def harmed(path, how):
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:-10])
    else:
        damage(path)


@pytest.mark.parametrize("has_state", [True, False])
def test_a_damaged_result_is_written_again_without_training(run, stops, monkeypatch, has_state):
    """Also if that is stopped at first, which leaves no state of the network before training."""
    changes = {"evaluate__on": "held_out", "evaluate__folds": 3}
    folder = run(**changes)
    whole = traces(folder)
    (folder / "result.json").write_text((folder / "result.json").read_text()[:50])
    if not has_state:  # a comparison removes the states of finished runs
        shutil.rmtree(folder / "state")
    states = [path.name for path in Run(folder).checkpoints.files()]
    monkeypatch.setattr(Stepper, "__call__", killed)
    with (
        pytest.warns(UserWarning, match="result.json must be JSON; it is cut off"),
        stops(Evaluator, "evaluate_prefixes"),
    ):
        run(resume=True, **changes)
    with nullcontext() if has_state else pytest.warns(UserWarning, match="result.json must be"):
        run(resume=True, **changes)
    assert traces(folder) == whole
    assert [path.name for path in Run(folder).checkpoints.files()] == states


def test_a_run_without_a_state_begins_again_and_takes_no_older_network_for_its_own(
    run, stops, monkeypatch, capsys
):
    """Killed before its first state, edited, begun again, and stopped once more."""
    with monkeypatch.context() as patch:
        patch.setattr("weiss.runs.checkpoints.Checkpoints.save", killed)
        with pytest.raises(Killed):
            run("stopped")
    slow = {"optim__lr": 1e-9, "optim__class_lr": 1e-9}
    whole = run("whole", **slow)
    folder = whole.parent / "stopped"
    shutil.copy(whole / "recipe.toml", folder)
    with stops(Stepper, "__call__"):
        run("stopped", resume=True, quiet=False, **slow)
    assert "No state was saved yet; the run begins again." in capsys.readouterr().out
    run("stopped", resume=True, **slow)
    assert_same_run(folder, whole)


def test_a_run_that_measures_nothing_is_prolonged_and_its_last_network_kept(run):
    changes = {"data__split": "all", "train__patience": 1}
    folder = run(train__epochs=2, **changes)
    run(train__epochs=5, resume=True, **changes)
    assert_same_run(folder, run("whole", train__epochs=5, **changes))


def test_metrics_of_epochs_that_are_not_done_are_removed(run):
    """Killed in the third epoch's state, and resumed with a patience that ends it before."""
    folder = run(train__epochs=2)
    lines = metrics(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**lines[-1], "epoch": 3}) + "\n")
    (folder / "result.json").unlink()
    run(train__epochs=2, resume=True)
    assert metrics(folder) == lines


def test_metrics_that_do_not_agree_with_the_model_give_no_result(run):
    folder = run()
    whole = traces(folder)
    shutil.rmtree(folder / "state")
    (folder / "result.json").write_text("[]")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"map_at_r": 0.', '"map_at_r": 0.9'))
    with pytest.warns(UserWarning, match=r"result.json must hold an object with names; got list"):
        run(resume=True)  # which trains again
    assert traces(folder) == whole


@pytest.mark.parametrize("text", ["", '{"epoch": 1, "lo', "[]\n", '{"epoch": 9}\n'])
def test_damaged_metrics_are_written_again_from_the_state(run, text):
    folder = run(train__epochs=2)
    whole = traces(folder)
    (folder / "metrics.jsonl").write_text(text)
    with pytest.warns(UserWarning, match="metrics.jsonl did not hold the metrics of the 2 epochs"):
        run(train__epochs=2, resume=True)
    assert traces(folder) == whole


def test_a_stop_while_data_are_loaded_ends_the_run_before_the_first_step(run, stops):
    with stops(trainer, "prepare", match="after step 0"):
        run()
