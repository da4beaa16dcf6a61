"""Runs that train adapters (needs peft), and a vision transformer from scratch on glyphs."""

import signal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import assert_same_run, losses, tiny_recipe

from weiss._base.processes import Processes
from weiss._base.tensor_files import read_tensors
from weiss.catalogue.export import export_run
from weiss.catalogue.networks import network_of_file, network_of_run
from weiss.runs import Run, recipe_from
from weiss.training import StoppedError, evaluate_run, train
from weiss.training.preparation import prepare
from weiss.training.step import Stepper
from weiss.training.trainer import Training

pytestmark = pytest.mark.slow
LORA = {"backbone__train": "lora", "backbone__lora_rank": 2}


@pytest.fixture(scope="module", autouse=True)
def peft(torchvision):
    return pytest.importorskip("peft", reason="needs pip install 'weiss[lora]'")


def test_the_network_of_a_run_with_adapters_is_plain_and_computes_what_was_measured(
    run, stripes, tmp_path, monkeypatch
):
    trained = []

    def finish(training, *given, real=Training._finish):
        trained.append(training.model)
        return real(training, *given)

    monkeypatch.setattr(Training, "_finish", finish)
    folder = run(**LORA, data__split="all")  # nothing is measured: the last network is kept
    tensors, _ = read_tensors(folder / "model.safetensors")
    start = prepare(tiny_recipe(stripes), torch.device("cpu"), Processes()).model.state_dict()
    assert {name for name in tensors if not name.startswith("loss.")} == set(start)
    export_run(folder, tmp_path / "network.safetensors")
    export_run(folder, tmp_path / "network.onnx")
    pixels = [np.full((40, 50, 3), value, dtype=np.uint8) for value in (20, 90, 220)]
    network = network_of_run(folder, "cpu")
    with torch.no_grad():
        images = torch.from_numpy(network.prepare(pixels))
        expected = trained[0].eval()(images).numpy()  # with its adapters
    assert [name for name in trained[0].state_dict() if ".lora_A." in name]
    for other in (
        network,
        network_of_file(tmp_path / "network.safetensors", "cpu"),
        network_of_file(tmp_path / "network.onnx", "cpu"),
    ):
        np.testing.assert_allclose(other.embed_pixels(pixels), expected, rtol=1e-3, atol=1e-4)


def test_a_run_with_adapters_is_measured_again_as_it_was(run):
    folder = run(**LORA)
    again, result = evaluate_run(folder, device="cpu").summary(), Run(folder).result()
    for name, value in again.items():
        assert result[name] == pytest.approx(value, abs=0.02), name


def test_a_run_with_adapters_that_is_stopped_after_every_step_is_the_run_that_was_not(
    run, tmp_path, monkeypatch
):
    changes = {**LORA, "train__warmup_on": "features", "data__cache": tmp_path / "cache"}
    whole, stops = run("whole", **changes), 0

    def step(stepper, images, labels, real=Stepper.__call__):
        found = real(stepper, images, labels)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(Stepper, "__call__", step)
    while not (tmp_path / "stopped" / "result.json").exists():
        try:
            run("stopped", resume=stops > 0, **changes)
        except StoppedError:
            stops += 1
    assert stops == Run(whole).result()["steps"]
    assert_same_run(tmp_path / "stopped", whole)


def test_a_vision_transformer_learns_glyphs_from_scratch_and_then_other_parts_of_it(
    tmp_path, torchvision, undrawn
):
    """With layer decay; then its head, its last block or adapters train on, and nothing else.

    Measured by the loss: such a network needs far more epochs to find characters it never saw.
    """
    network = {
        "backbone.name": "timm:vit_tiny_patch16_224",
        "backbone.weights": "scratch",
        "backbone.img_size": 32,
        "backbone.patch_size": 8,
        "backbone.embed_dim": 64,
        "backbone.num_heads": 2,
        "backbone.depth": 3,
        "train.device": "cpu",
        "train.precision": "fp32",
        "data.cache": str(tmp_path / "cache"),
        "schedule.ramp_epochs": 0.5,
        "evaluate.every": 1,
    }
    scratch = {**network, "train.epochs": 2, "optim.lr": 1e-3, "optim.layer_decay": 0.8}
    train(recipe_from("glyphs", scratch), tmp_path / "scratch", quiet=True)
    first, last = losses(tmp_path / "scratch")
    assert last < 0.95 * first
    state = Run(tmp_path / "scratch").model().trunk.network.state_dict()
    save_file(
        {name: value.contiguous() for name, value in state.items()}, tmp_path / "w.safetensors"
    )
    start = {**network, "backbone.weights": str(tmp_path / "w.safetensors"), "train.epochs": 2}
    for part in ("frozen", "last:1", "lora"):
        changes = {**start, "backbone.train": part, "optim.lr": 1e-3, "schedule.ramp_epochs": 0}
        train(recipe_from("glyphs", changes), tmp_path / part, quiet=True)
        first, last = losses(tmp_path / part)
        assert last < first, part
        kept = Run(tmp_path / part).model().trunk.network.state_dict()
        same = {name for name in state if torch.equal(kept[name], state[name])}
        if part == "frozen":
            assert same == set(state)
        elif part == "last:1":
            assert {name for name in state if not name.startswith(("blocks.2.", "norm."))} == same
        else:
            assert all("weight" in name and "norm" not in name for name in set(state) - same)
