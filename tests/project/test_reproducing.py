"""What the page on reproducing the paper needs: its commands, and the weights of ResNet-50 v1."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from weiss.backbones import ResNet
from weiss.comparing import make_study, reality_check, traditional
from weiss.runs import REALITY_CHECK_RECIPES, recipe_from

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproducing.md"
WEIGHTS = ROOT / "results" / "cub-resnet50" / "weights.py"
PARTS = ("gamma", "beta", "moving_mean", "moving_variance")
OPTIONS = {"losses": "", "seeds": "1", "trials": "50", "repeats": "10", "values": "", "set": ""}


def tables(path):
    """The rows of all tables of a Markdown file, as lists of cells."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def asked_for(command):
    """The plan of a command of the page, without its data."""
    _, kind, name, source, *rest = shlex.split(command)
    given = OPTIONS | {rest[at].removeprefix("--"): rest[at + 1] for at in range(0, len(rest), 2)}
    losses = [loss for loss in given["losses"].split(",") if loss] or None
    if name == "reality-check":
        recipe = recipe_from(REALITY_CHECK_RECIPES[source])
        counts = {key: int(given[key]) for key in ("trials", "repeats")}
        return reality_check(recipe, losses, **counts)
    recipe = recipe_from(source, [given["set"]] if given["set"] else ())
    if kind == "bench":
        return traditional(recipe, losses, seeds=int(given["seeds"]))
    key, _, values = given["values"].partition("=")
    varied = {key: [int(value) for value in values.split(",")]} if key else {}
    return make_study(name, recipe, losses=losses, seeds=int(given["seeds"]), values=varied)


def commands():
    """Of each row of the page that trains: what it is, the command, the number of trainings."""
    rows = [row for row in tables(PAGE) if len(row) == 5 and row[2][:1].isdigit()]
    return {row[0]: (row[1].strip("`"), int(row[2].replace(",", ""))) for row in rows}


@pytest.mark.parametrize("what", commands())
def test_a_command_for_a_table_of_the_paper_trains_as_often_as_the_page_says(what):
    command, number = commands()[what]
    assert asked_for(command).num_trainings == number


def test_the_page_has_every_table_and_figure_of_the_paper_and_covers_its_numbers():
    text = " ".join(row[0] for row in tables(PAGE) if len(row) == 5)
    numbers = {
        int(number)
        for found in re.findall(r"tables? ([\d, ]+):", text)
        for number in found.split(",")
    }
    assert numbers == set(range(1, 12))
    assert set(re.findall(r"figure (\d):", text)) == {"1", "2", "3", "4"}
    published = json.loads((ROOT / "src/weiss/reporting/published.json").read_text())
    plans = [asked_for(command) for command, _ in commands().values()]
    for table, kind in (("batch_size", "batch-size"), ("regularisation", "regularisation")):
        for loss, of_loss in published[table].items():
            for data, values in of_loss.items():
                (plan,) = [p for p in plans if (p.kind, p.recipe.data.name) == (kind, data)]
                assert published["short_names"][loss] in plan.options["losses"]
                assert {float(value) for value in values} <= set(plan.axes[0]["values"])


@pytest.fixture(scope="module")
def conversion():
    spec = importlib.util.spec_from_file_location("cub_weights", WEIGHTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_converted_weights_compute_what_keras_would(conversion):
    """Random arrays under Keras's names: every name is used, and the first layer is the same."""
    network = ResNet(50, "v1").state_dict()
    random = np.random.default_rng(0)
    given = {}
    for name, (convolution, _) in conversion.layers().items():
        shape = network[f"{convolution}.weight"].shape
        size = (*shape[2:], shape[1], shape[0])
        given[f"{name}/kernel"] = random.normal(size=size) if name == "conv1" else np.zeros(size)
        old = "bn_conv1" if name == "conv1" else name.replace("res", "bn")
        for part in (f"{name}/bias", f"{old}/gamma", f"{old}/beta", f"{old}/moving_mean"):
            given[part] = random.normal(size=shape[0])
        given[f"{old}/moving_variance"] = random.uniform(1e4, 2e4, shape[0])
    given |= {"fc1000/kernel": np.zeros((2048, 1000)), "fc1000/bias": np.zeros(1000)}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    found = conversion.convert(given)
    assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in network.items()}
    mean = given["bn4f_branch2b/moving_mean"] - given["res4f_branch2b/bias"]
    np.testing.assert_array_equal(found["layer3.5.bn2.running_mean"].numpy(), mean)

    pixels = torch.from_numpy(random.uniform(0, 255, (1, 3, 21, 21)))
    keras = pixels.flip(1) - torch.tensor([103.939, 116.779, 123.68])[None, :, None, None]
    kernel = torch.from_numpy(given["conv1/kernel"]).permute(3, 2, 0, 1).double()
    bias, gamma, beta, mean, variance = (
        torch.from_numpy(given[name]).double()[None, :, None, None]
        for name in ("conv1/bias", *(f"bn_conv1/{part}" for part in PARTS))
    )
    theirs = torch.nn.functional.conv2d(keras, kernel) + bias
    theirs = gamma * (theirs - mean) / (variance + 1e-3).sqrt() + beta
    middle, deviation = (
        torch.tensor(values).double()[None, :, None, None]
        for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    ours = (pixels / 255 - middle) / deviation
    ours = torch.nn.functional.conv2d(ours, found["conv1.weight"].double())
    running = [found[f"bn1.{name}"].double() for name in ("running_mean", "running_var")]
    scale = [found[f"bn1.{name}"].double() for name in ("weight", "bias")]
    ours = torch.nn.functional.batch_norm(ours, *running, *scale, eps=1e-5)
    # Half precision of the weights is all that differs.
    assert (ours - theirs).abs().max() < 1e-3 * theirs.abs().max()


@pytest.mark.parametrize(("title", "folder"), [("CUB", "cub-resnet50"), ("Cars", "cars-resnet50")])
def test_proxy_anchor_is_compared_with_its_repository_by_the_kept_runs(title, folder):
    runs = sorted((ROOT / "results" / folder / "headline" / "proxy_anchor").glob("seed-*"))
    chosen = [json.loads((run / "result.json").read_text())["precision_at_1"] for run in runs]
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in runs]
    curves = [[json.loads(each)["evaluation"]["precision_at_1"] for each in run] for run in lines]
    best = [max(curve) for curve in curves]
    assert all(curve.index(max(curve)) < len(curve) - 1 for curve in curves)  # no longer growing
    row = next(cells for cells in tables(PAGE) if cells[0] == title and len(cells) == 4)
    assert row[2:] == [f"{100 * np.mean(values):.2f}" for values in (chosen, best)]
    text = " ".join(PAGE.read_text().split())
    assert f"{100 * max(best):.2f}" in text
    assert f"{float(row[1]) - float(row[3]):.1f}" in text
