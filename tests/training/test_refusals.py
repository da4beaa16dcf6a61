"""What a run refuses, what ends it before its time, and what it leaves then."""

import math
import os
import re
import resource
import shutil
import stat
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from tiny import command, losses
from typed import weiss

from weiss._base.files import alone
from weiss.backbones import Embedder
from weiss.data.content import digest_of_source
from weiss.data.sources import Pixels, Vectors
from weiss.runs import Run, recipe_from
from weiss.training import NotFiniteError, evaluate_run, train, trainer
from weiss.training.step import Stepper

# What cannot be


def test_a_folder_that_holds_a_run_is_not_overwritten(run):
    folder = run(train__epochs=1)
    before = (folder / "result.json").read_bytes()
    law = f"--out must name a folder without a run; .* weiss train --resume --out {folder}"
    with pytest.raises(ValueError, match=law):
        run(train__epochs=1)
    assert (folder / "result.json").read_bytes() == before
    (folder / "recipe.toml").unlink()  # its states are there
    with pytest.raises(ValueError, match="whose recipe.toml is missing"):
        run(train__epochs=1)


WRONG = {
    "batch": (
        {"train__batch_size": 48},
        "train.batch_size must be at most .* 36 in stripes; .* 48",
    ),
    "classes": (
        {"loss__name": "contrastive", "train__batch_size": 32, "train__per_class": 4},
        "more classes than the 6 that train .* needs 8",
    ),
    "gpu": ({"train__device": "cuda"}, "train.device must be a device of this machine; 'cuda' is"),
    "fp16": ({"train__precision": "fp16"}, "train.precision must not be 'fp16' on cpu"),
    "folds": (
        {"evaluate__on": "held_out", "evaluate__folds": 7},
        "evaluate.folds must be at most the number of training classes, 6",
    ),
    "vectors": (
        {"backbone__name": "features", "backbone__widths": "none", "backbone__channels": "none"},
        "backbone.name must be a network for images",
    ),
    "matmul_dtype": ({"loss__matmul_dtype": "bfloat16"}, "matmul_dtype must be .* on cpu"),
    "impl": ({"loss__impl": "triton"}, "impl='triton' cannot be used .* on cpu"),
    "skip": ({"loss__skip": "on", "loss__impl": "reference"}, "skip='on' cannot be used"),
    "argument": (
        {"loss__name": "proxy_anchor", "loss__alphaa": 3},
        "ProxyAnchorLoss has no argument 'alphaa'. Did you mean",
    ),
    "number": (
        {"loss__name": "arcface", "loss__margin": "abc"},
        "margin must be a number for ArcFaceLoss; got 'abc'",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that must not be there")
@pytest.mark.parametrize("kind", list(WRONG))
def test_what_cannot_be_is_refused_in_terms_of_the_recipe(run, kind, tmp_path):
    changes, law = WRONG[kind]
    with pytest.raises((ValueError, TypeError), match=law):
        run(**changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
@pytest.mark.filterwarnings("ignore:.*no supported trackers")
def test_a_tracker_that_is_not_installed_is_refused(run):
    with pytest.raises(ValueError, match="track.with must name trackers that are installed"):
        run(track__with='["mlflow"]', train__epochs=1)


def test_a_run_is_resumed_with_its_own_recipe_only(run):
    folder = run(train__epochs=1)
    path = folder / "recipe.toml"
    before = path.read_text()
    with pytest.raises(ValueError, match=r"own recipe[^$]*optim.lr: 0.01 -> 0.5"):
        run(train__epochs=2, resume=True, optim__lr=0.5)
    edits = {"seed": (0, 1), "lr": (0.01, 0.001), "beta": (80.0, 40.0), "batch_size": (12, 6)}
    for key, (old, new) in edits.items():
        text, number = re.subn(rf"(?m)^{key} = {old}$", f"{key} = {new}", path.read_text())
        assert number == 1
        path.write_text(text)
    with pytest.raises(ValueError, match="own recipe") as error:
        train(recipe_from(folder, ["train.epochs=2"]), folder, resume=True, quiet=True)
    for line in ("seed: 0 -> 1", "optim.lr: 0.01 -> 0.001", "loss.beta: 80.0 -> 40.0"):
        assert f"\n  {line}\n" in str(error.value)
    assert "\n  train.batch_size: 12 -> 6\n" in str(error.value)
    assert f"weiss train {path} --out ANOTHER_FOLDER" in str(error.value)
    # The run's own recipe resumes it, and is written again.
    run(train__epochs=2, resume=True)
    assert path.read_text() == before.replace("epochs = 1\n", "epochs = 2\n", 1)


def test_a_cosine_depends_on_the_number_of_epochs_from_its_first_step_on(run):
    run(train__epochs=1, schedule__name="cosine")
    with pytest.raises(ValueError, match="train.epochs: 1 -> 3"):
        run(train__epochs=3, schedule__name="cosine", resume=True)


def test_a_finished_run_is_left_alone(run, capsys):
    folder = run(train__epochs=1)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    run(train__epochs=1, resume=True, quiet=False)
    assert "is finished already" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


def test_a_run_is_resumed_with_its_own_data_only(run, stripes, tmp_path):
    data = shutil.copytree(stripes, tmp_path / "stripes")
    folder = run(data=data, train__epochs=1)
    trained = Run(folder).model_facts()["class_names"]
    shutil.copy(data / trained[0] / "0.png", data / trained[0] / "new.png")
    law = "36 images of 6 classes .* and are 37 images of 6 classes"
    with pytest.raises(ValueError, match=law):
        run(data=data, train__epochs=2, resume=True)
    # A changed test set is noticed too.
    (data / trained[0] / "new.png").unlink()
    tested = next(path for path in data.iterdir() if path.name not in trained)
    (tested / "0.png").rename(tested / "other.png")
    with pytest.raises(ValueError, match="36 images .* 36 images"):
        run(data=data, train__epochs=2, resume=True)
    (tested / "other.png").rename(tested / "0.png")
    # Other pixels under the same names, too.
    one, two = data / "class0" / "0.png", data / "class0" / "1.png"
    kept = one.read_bytes(), two.read_bytes()
    one.write_bytes(kept[1])
    two.write_bytes(kept[0])
    with pytest.raises(ValueError, match="names and classes are the same, their content is not"):
        run(data=data, train__epochs=2, resume=True)
    one.write_bytes(kept[0])
    two.write_bytes(kept[1])
    run(data=data, train__epochs=2, resume=True)


def test_a_key_that_a_later_version_adds_does_not_end_old_runs(run):
    folder = run(train__epochs=1)
    state = Run(folder).checkpoints.newest()
    for section, key in (("loss", "delta"), ("evaluate", "clustering")):
        assert state.facts["recipe"][section].pop(key) is not None
    path = folder / "recipe.toml"
    path.write_text(re.sub(r"(delta|clustering) = .*\n", "", path.read_text()))
    Run(folder).checkpoints.save(3, state)
    run(train__epochs=2, resume=True)
    assert Run(folder).result()["epochs"] == 2


def test_vectors_and_images_in_memory_with_other_values_are_refused():
    pixels = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    digests = {digest_of_source(Pixels(pixels)), digest_of_source(Pixels(pixels[::-1]))}
    vectors = pixels.reshape(2, 16).astype(np.float32)
    digests |= {digest_of_source(Vectors(vectors)), digest_of_source(Vectors(vectors + 1))}
    assert len(digests) == 4
    assert digest_of_source(Pixels(pixels.copy(), ["a", "b"])) in digests


def test_data_that_moved_are_the_same_data(run, stripes, tmp_path):
    """Also where a list names every file by its whole path."""
    here = shutil.copytree(stripes, tmp_path / "here")
    listed = tmp_path / "list.csv"

    def write(folder):
        files = sorted(folder.rglob("*.png"))
        listed.write_text("path,label\n" + "".join(f"{p},{p.parent.name}\n" for p in files))

    write(here)
    run("listed", data=listed, train__epochs=1)
    run(data=here, train__epochs=1)
    there = here.rename(tmp_path / "there")
    for path in there.rglob("*.png"):
        os.utime(path, (1, 1))
    write(there)
    run("listed", data=listed, train__epochs=2, resume=True)
    run(data=there, train__epochs=2, resume=True)


def test_two_programs_do_not_write_to_one_folder(run, tmp_path):
    (tmp_path / "run").mkdir()
    with (
        alone(tmp_path / "run" / "run"),
        pytest.raises(ValueError, match="must not be written by two programs; .* Wait for it"),
    ):
        run()
    assert not Run(tmp_path / "run").exists()
    run(train__epochs=1)


# A loss that is no number


def all_finite(folder):
    state = Run(folder).checkpoints.newest()
    return all(t.isfinite().all() for t in state.tensors.values() if t.is_floating_point())


def test_a_loss_that_is_no_number_ends_the_run_and_the_state_before_it_is_kept(
    run, monkeypatch, tmp_path
):
    calls = []

    def broken(stepper, images, labels, real=Stepper.__call__):
        value, embeddings, joined = real(stepper, images, labels)
        calls.append(value)
        return value * (math.nan if len(calls) == 8 else 1), embeddings, joined

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", broken)
        with pytest.raises(NotFiniteError) as error:
            run(train__epochs=4, train__checkpoint_seconds=0)
    said = str(error.value)
    assert "it was nan at step 2 of epoch 3" in said
    assert "learning rates network 0.005, fields 0.025" in said
    assert "after step 7 of the run" in said
    assert not Run(tmp_path / "run").is_finished()
    assert all_finite(tmp_path / "run")
    folder = run(train__epochs=4, train__checkpoint_seconds=0, resume=True)
    whole = run("whole", train__epochs=4)
    assert losses(folder) == losses(whole)


@pytest.mark.parametrize("name", ["contrastive_pml", "mf_contrastive"])
def test_one_embedding_that_is_no_number_ends_the_run(run, monkeypatch, name):
    def broken(model, images, real=Embedder.forward):
        found = real(model, images)
        return torch.cat([found[:1] * math.nan, found[1:]]) if model.training else found

    monkeypatch.setattr(Embedder, "forward", broken)
    with pytest.raises(NotFiniteError, match="it was nan at step 1 of epoch 1"):
        run(train__epochs=1, loss__name=name, train__batch_size=16, train__per_class=4)


@pytest.mark.parametrize("steps", [3, 1])
def test_a_learning_rate_that_is_far_too_high_is_named(run, tmp_path, steps):
    # With one step an epoch the evaluation notices it first, not the loss.
    changes = {"train__batch_size": 36 // steps, "train__warmup_epochs": 0}
    with pytest.raises(NotFiniteError, match="learning rates network 1e\\+30"):
        run(optim__lr=1e30, train__epochs=3, train__checkpoint_seconds=0, **changes)
    if Run(tmp_path / "run").checkpoints.files():
        assert all_finite(tmp_path / "run")


# A full disk


def test_a_full_disk_is_one_message_and_the_state_before_it_is_whole(run, stripes, tmp_path):
    folder = run(train__epochs=2)
    (newest,) = Run(folder).checkpoints.files()
    before = newest.read_bytes()
    limit = len(before) // 2
    assert (folder / "model.safetensors").stat().st_size < limit

    changes = {"train__epochs": 4, "train__checkpoint_seconds": 0}
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
    try:
        done = weiss(*command(stripes, folder, "--resume", **changes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "could not be written" in said
    assert "The last good state, after step 6 of the run, is kept" in said
    assert f"Make room, then: weiss train --resume --out {folder}" in said
    assert [path.read_bytes() for path in Run(folder).checkpoints.files()] == [before]
    assert list(folder.rglob("*.tmp")) == []
    run(resume=True, **changes)
    whole = run("whole", **changes)
    assert losses(folder) == losses(whole)


def test_resuming_nothing_is_a_mistake_not_a_new_run(tmp_path, stripes):
    done = weiss("train", "--resume", "--out", tmp_path / "typo")
    assert done.returncode == 2
    assert "--resume must find a run in --out" in " ".join(done.stderr.split())
    assert not (tmp_path / "typo").exists()
    done = weiss("train", "--resume")
    assert "must know which run to resume. Add --out" in " ".join(done.stderr.split())


def test_files_of_a_run_can_be_read_by_whom_other_files_can(finished):
    usual = stat.S_IMODE((finished / "result.json").stat().st_mode)
    for path in (finished / "model.safetensors", *(finished / "state").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == usual


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(finished):
    for asked in ("gpu", "cuda:99"):
        with pytest.raises(ValueError, match="device must be"):
            evaluate_run(finished, device=asked)


@pytest.mark.parametrize("has_state", [True, False])
def test_fewer_epochs_than_are_done_are_refused_and_the_recipe_stays(run, has_state):
    folder = run(train__epochs=3)
    if not has_state:  # a comparison removes the states of finished runs
        shutil.rmtree(folder / "state")
    before = (folder / "recipe.toml").read_bytes()
    with pytest.raises(ValueError, match="train.epochs must be at least the 3 that the run has"):
        run(train__epochs=2, resume=True)
    assert (folder / "recipe.toml").read_bytes() == before


def test_a_run_that_another_program_began_meanwhile_is_not_overwritten(run, tmp_path, monkeypatch):
    def slow(recipe, folder, real=trainer.make_accelerator):
        Run(folder).write_recipe("seed = 5\n")
        return real(recipe, folder)

    monkeypatch.setattr(trainer, "make_accelerator", slow)
    with pytest.raises(ValueError, match="--out must name a folder without a run"):
        run(train__epochs=1)
    assert (tmp_path / "run" / "recipe.toml").read_text() == "seed = 5\n"


def test_a_part_with_one_class_is_not_measured(run, stripes, tmp_path):
    data = tmp_path / "data"
    for name in ("class0", "class1", "class2"):
        shutil.copytree(stripes / name, data / name)
    with pytest.warns(UserWarning, match="test part of data has a single class"):
        folder = run(data=data, data__held_out=0.34, train__epochs=2, train__batch_size=6)
    assert Run(folder).result()["measured_on"] == "nothing"
