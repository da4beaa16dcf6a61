"""Training where there is a CUDA device."""

import math
import warnings

import pytest
import torch
from tiny import losses, tiny_recipe

from weiss._base.processes import Processes
from weiss.runs import Run
from weiss.training.loss_watch import LossWatch
from weiss.training.preparation import prepare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(run, precision):
    folder = run(train__device="cuda", train__precision=precision, train__epochs=6)
    assert losses(folder)[-1] < losses(folder)[0]
    assert Run(folder).result()["peak_gpu_memory_gb"] > 0


def test_auto_means_bfloat16_on_a_gpu_that_has_it(run):
    folder = run(train__device="cuda", train__precision="auto", train__epochs=1)
    assert Run(folder).recipe()["train"]["precision"] == "bf16"
    assert Run(folder).recipe()["made_with"]["device"] == torch.cuda.get_device_name()


def test_a_gpu_and_a_cpu_agree_in_float32(run):
    on_gpu = run("gpu", train__device="cuda", train__precision="fp32", train__epochs=2)
    on_cpu = run("cpu", train__device="cpu", train__precision="fp32", train__epochs=2)
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=1e-3)


def test_a_run_that_was_stopped_goes_on_where_it_was(run, monkeypatch):
    from weiss.training import StoppedError
    from weiss.training.trainer import Training

    settings = {"train__device": "cuda", "train__precision": "fp32", "train__epochs": 4}
    whole = run("whole", **settings)
    steps = Training._stop_or_save

    def stop_once(self):
        self.stop.wanted = self.at.epoch == 2 and self.at.step == 1
        steps(self)

    monkeypatch.setattr(Training, "_stop_or_save", stop_once)
    with pytest.raises(StoppedError):
        run("stopped", **settings)
    monkeypatch.setattr(Training, "_stop_or_save", steps)
    stopped = run("stopped", resume=True, **settings)
    assert losses(stopped) == pytest.approx(losses(whole), rel=1e-3)


@pytest.mark.parametrize("name", ["mf_cwms", "mf_contrastive", "cwms", "contrastive"])
def test_a_step_does_not_make_the_gpu_wait(stripes, name):
    recipe = tiny_recipe(stripes, loss__name=name, train__device="cuda", train__precision="bf16")
    made = prepare(recipe, torch.device("cuda"), Processes())
    made.stepper.set_phase(warming_up=False)
    made.model.train()
    batches = list(made.experiment.batches(0))
    watch = LossWatch(made.device)
    for images, labels in batches[:1]:  # moments and workspaces are made in the first
        made.stepper(images, labels)
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):  # the mode announces itself as a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for images, labels in batches[1:]:
            value, embeddings, joined = made.stepper(images, labels)
            made.means.add(embeddings, joined)
            watch.add(value, 1, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert math.isfinite(watch.finish())
