"""Runs to be exported, made in seconds: one that has trained, others with random weights."""

import warnings

import torch
from built_once import built_once
from tiny import tiny_recipe, write_stripes

from weiss.catalogue.export import export_run
from weiss.runs import Kept, Run, build_backbone, build_loss, recipe_from, to_toml
from weiss.training import train

NAMES = ("ant", "bee", "cat")


def make_exports(folder):
    """Train for an epoch on stripes, and export: ``run``, ``onnx``, ``safetensors``."""
    stripes = built_once("stripes", lambda folder: write_stripes(folder / "data"))
    recipe = tiny_recipe(stripes / "data", train__epochs=1, evaluate__on="held_out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(recipe, folder / "run", quiet=True, pictures=False)
    for suffix in ("onnx", "safetensors"):
        export_run(folder / "run", folder / suffix / f"model.{suffix}")


def exports():
    """Return the folder of `make_exports`, only to be read."""
    return built_once("exports", make_exports)


def random_run(folder, recipe, *settings):
    """Write the folder of a run whose network is random, statistics of its layers included."""
    recipe = recipe_from(recipe, settings)
    run = Run(folder)
    torch.manual_seed(0)
    model = build_backbone(recipe.as_dict()["backbone"])
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2.0)
    loss = build_loss(recipe.as_dict()["loss"], len(NAMES), model.embedding_size)
    run.write_recipe(to_toml(recipe.as_dict()))
    run.write_model(Kept.now(model, loss, {"epoch": 4, "metrics": {}, "class_names": NAMES}))
    return run
