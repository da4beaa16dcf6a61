"""The kept results: every number that is told is that of a run that is kept."""

import csv
import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from weiss.backbones import ResNet
from weiss.comparing import make_study, reality_check, traditional
from weiss.evaluation.statistics import t_interval
from weiss.runs import REALITY_CHECK_RECIPES, recipe_from

ROOT = Path(__file__).parents[2]
CUB = ROOT / "results" / "cub-resnet50"
COMPARISONS = sorted(path.parent for path in CUB.glob("*/summary.json"))
SCORES = ("map_at_r", "precision_at_1", "r_precision", "epoch")


def summary(name):
    return json.loads((CUB / name / "summary.json").read_text())


def tables(path):
    """The rows of all tables of a Markdown file, as lists of cells."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def prose(path):
    """The text of a file, whatever its line breaks."""
    return " ".join(path.read_text().split())


def row_of(path, first):
    """The first row of a Markdown file's tables that begins with a cell."""
    return next(row for row in tables(path) if row[0].startswith(first))


def test_there_are_results():
    names = {folder.name for folder in COMPARISONS}
    assert names == {
        "headline",
        "dimension",
        "batch-size",
        "beta-delta",
        "regularisation",
        "held-out",
    }
    assert all(summary(folder.name)["is_complete"] for folder in COMPARISONS)


@pytest.mark.parametrize("folder", COMPARISONS, ids=lambda folder: folder.name)
def test_a_summary_is_that_of_its_runs(folder):
    for row in summary(folder.name)["rows"]:
        results = [json.loads((folder / run / "result.json").read_text()) for run in row["runs"]]
        assert len(results) >= 1
        for name in SCORES:
            values = [result.get("test", result).get(name, result.get(name)) for result in results]
            assert row["scores"][name]["values"] == values
        for run, seed in zip(row["runs"], row["repetitions"], strict=True):
            recipe = tomllib.loads((folder / run / "recipe.toml").read_text())
            assert recipe["seed"] == seed
            assert recipe["made_with"]["device"] == "NVIDIA H200"
            assert recipe["loss"]["name"] == row["loss"] or row["loss"] == "untrained"


def values_of(row, name, factor=100.0):
    return [factor * value for value in row["scores"][name]["values"]]


def told(row, name, factor=100.0, digits=2):
    """A score as tables have it: mean and interval, or the values of one or two runs."""
    values = values_of(row, name, factor)
    if len(values) <= 2:
        return ", ".join(f"{value:.{digits}f}" for value in values)
    interval = t_interval(np.array(values))
    half = interval.high - interval.mean
    return f"{interval.mean:.2f} ± {half:.2f}" if digits else f"{interval.mean:g} ± {half:.1f}"


def test_the_headline_is_that_of_the_summary():
    for row in summary("headline")["rows"]:
        cells = row_of(CUB / "README.md", row["title"])
        means = [f"{np.mean(values_of(row, 'map_at_r')):.2f}", told(row, "map_at_r")]
        assert cells[1] == means[len(row["runs"]) > 2]
        assert cells[2:4] == [told(row, "precision_at_1"), told(row, "r_precision")]
        if row["title"] != "pretrained":
            assert cells[4] == told(row, "epoch", 1.0, 0)
            assert cells[5] == f"{np.mean(values_of(row, 'epoch', 1.0)) - 5:g}"
        assert cells[6] == ", ".join(f"{value:.2f}" for value in values_of(row, "map_at_r"))


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "results.md"], ids=str)
def test_other_texts_have_the_numbers_of_the_summary(path):
    found = 0
    for row in summary("headline")["rows"]:
        without = "the pretrained network"
        title = without if row["title"] == "pretrained" else row["title"]
        listed = [cells for cells in tables(path) if cells[0].split(",")[0] == title]
        for cells in listed:
            assert cells[1:3] == [told(row, "map_at_r"), told(row, "precision_at_1")]
            assert cells[3] == ("" if title[:3] == "the" else told(row, "epoch", 1.0, 0))
            found += 1
    assert found == 7


def test_the_pretrained_network_has_no_head_and_is_told_in_both_precisions():
    found = {}
    for folder in (CUB / "pretrained", CUB / "headline" / "untrained" / "seed-0"):
        result = json.loads((folder / "result.json").read_text())
        recipe = tomllib.loads((folder / "recipe.toml").read_text())
        assert (result["loss"], recipe["backbone"]["head"]) == ("untrained", "none")
        found[recipe["train"]["precision"]] = result
    assert set(found) == {"fp32", "bf16"}
    result = found["fp32"]
    scores = [f"{100 * result[name]:.2f}" for name in ("map_at_r", "precision_at_1")]
    text = f"MAP@R {scores[0]}, P@1 {scores[1]} and R-precision {100 * result['r_precision']:.2f}"
    assert text in prose(CUB / "README.md")


def curves(loss):
    files = sorted((CUB / "headline" / loss).glob("seed-*/metrics.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[100 * line["evaluation"]["map_at_r"] for line in run] for run in lines]


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        ("proxy_anchor", "ProxyAnchor"),
        ("mf_contrastive", "MFCont"),
        ("mf_cwms", "MFCWMS"),
        ("mf_rest_ms", "MFRestMS"),
    ],
)
def test_what_an_epoch_chosen_by_other_seeds_costs(loss, title):
    runs, lost = curves(loss), []
    for number, own in enumerate(runs):
        others = runs[:number] + runs[number + 1 :]
        means = [
            np.mean([run[epoch] for run in others if len(run) > epoch])
            for epoch in range(max(map(len, others)))
        ]
        # A run that ended before that epoch keeps its last one.
        lost.append(max(own) - own[min(int(np.argmax(means)), len(own) - 1)])
    assert f"{np.mean(lost):.2f} ({title})" in prose(CUB / "README.md")


def test_differences_are_those_of_the_tests():
    text = prose(CUB / "README.md")
    tests = {
        (test["first"], test["second"]): test
        for test in summary("headline")["tests"]
        if test["metric"] == "map_at_r"
    }
    for child in ("mf_cwms", "mf_contrastive"):
        test = tests["proxy_anchor", child]
        less, low, high = (-100 * test[key] for key in ("difference", "high", "low"))
        assert f"{less:.2f} ({low:.2f} to {high:+.2f})" in text
    assert f"{100 * tests['mf_cwms', 'cwms']['difference']:.2f} (MFCWMS over CWMS)" in text
    over = tests["mf_contrastive", "contrastive"]["difference"]
    assert f"{100 * over:.2f} (MFCont over Contrastive)" in text


@pytest.mark.parametrize(
    "path",
    [CUB / "README.md", ROOT / "docs" / "one_loss.md", ROOT / "docs" / "results.md"],
    ids=str,
)
def test_one_against_the_rest_is_level_with_the_best_and_later_than_mfcwms(path):
    text = prose(path)
    for test in summary("headline")["tests"]:
        if test["second"] == "mf_rest_ms" and test["first"] in {"proxy_anchor", "mf_cwms"}:
            mean, low, high = (100 * test[key] for key in ("difference", "low", "high"))
            if test["metric"] == "map_at_r":
                assert mean <= 0.2  # level: at most so far behind, over at least four seeds
                assert test["num_pairs"] >= 4
                words = f"{mean:.2f} ({low:+.2f} to {high:+.2f})"
                assert words in text or words.replace(" (", ", ").replace(")", "") in text
    epochs = {
        row["loss"]: row["scores"]["epoch"]["mean"]
        for row in summary("headline")["rows"]
        if not row["changes"]
    }
    assert epochs["mf_cwms"] < epochs["mf_rest_ms"] == 16.25 < epochs["proxy_anchor"]
    assert "16.25" in text


EARLIER = {
    "MFCWMS, fields joint": "mf_cwms/seed-0",
    "MFCWMS, `fields.how=alternating`": "choices/mf_cwms_alternating",
    "MFCWMS, `fields.how=class_mean`": "choices/mf_cwms_class_mean",
    "MFCWMS, `loss.average=samples`": "choices/mf_cwms_samples",
    "MFCont, by classes": "mf_contrastive/seed-0",
    "MFCont, `loss.average=samples`": "choices/mf_contrastive_samples",
}


@pytest.mark.parametrize("title", list(EARLIER))
def test_earlier_runs_are_told_as_they_are(title):
    result = json.loads((CUB / "layer-by-layer" / EARLIER[title] / "result.json").read_text())
    scores = [f"{100 * result[name]:.2f}" for name in ("map_at_r", "precision_at_1")]
    assert row_of(CUB / "README.md", title)[1:] == [*scores, str(result["epoch"])]


STUDIES = {
    "dimension": ("backbone.embedding_size", {"ProxyAnchor": 1, "MFCont": 2, "MFCWMS": 3}),
    "batch-size": ("train.batch_size", {"ProxyAnchor": 1, "MFCWMS": 2}),
    "regularisation": ("loss.reg_weight", {"MFCont": 1, "MFCWMS": 3}),
}


@pytest.mark.parametrize("name", list(STUDIES))
def test_tables_of_studies_are_those_of_their_runs(name):
    key, columns = STUDIES[name]
    text = (CUB / "README.md").read_text()
    part = text[text.index(f"[{name}]") :]
    rows = {
        cells[0]: cells
        for line in part[part.index("|") : part.index("\n\n- ")].splitlines()
        if (cells := [cell.strip() for cell in line.strip().strip("|").split("|")])
    }
    checked = 0
    for row in summary(name)["rows"]:
        if row["title"] in columns:
            cells = rows[f"{row['at'][key]:g}"]
            score = 100 * row["scores"]["map_at_r"]["values"][0]
            assert cells[columns[row["title"]]] == f"{score:.2f}"
            checked += 1
    assert checked == 3 * len(columns) + (3 if name == "dimension" else 0)


def test_the_table_of_beta_and_delta_is_that_of_its_runs():
    for row in summary("beta-delta")["rows"]:
        if row["loss"] == "mf_cwms":
            beta, delta = row["at"]["loss.beta"], row["at"]["loss.delta"]
            cells = row_of(CUB / "README.md", f"{delta:.1f} (")
            assert cells[{50: 1, 80: 2}[beta]] == f"{100 * row['scores']['map_at_r']['mean']:.2f}"


def test_mean_field_losses_reach_proxy_anchor_in_fewer_epochs():
    rows = {row["loss"]: row["scores"] for row in summary("headline")["rows"] if not row["changes"]}
    rival = rows["proxy_anchor"]
    for loss in ("mf_cwms", "mf_contrastive"):
        assert rows[loss]["map_at_r"]["mean"] >= rival["map_at_r"]["low"]
        assert rows[loss]["epoch"]["mean"] - 5 <= 0.7 * (rival["epoch"]["mean"] - 5)
        assert len(rows[loss]["map_at_r"]["values"]) >= 4


def test_earlier_runs_of_the_same_settings_lie_in_the_interval():
    rows = {row["loss"]: row["scores"] for row in summary("headline")["rows"] if not row["changes"]}
    for loss in ("mf_cwms", "mf_contrastive"):
        runs = sorted((CUB / "layer-by-layer" / loss).glob("seed-*/result.json"))
        earlier = np.mean([json.loads(path.read_text())["map_at_r"] for path in runs])
        assert len(runs) == 3
        assert rows[loss]["map_at_r"]["low"] <= earlier <= rows[loss]["map_at_r"]["high"]


def test_no_photograph_and_no_folder_of_a_machine_is_kept():
    texts = 0
    for path in CUB.rglob("*"):
        assert path.suffix not in {".jpg", ".jpeg", ".safetensors", ".pt", ".sqlite3"}, path
        if path.suffix in {".json", ".jsonl", ".toml", ".md", ".html"}:
            text = path.read_text()
            assert not re.search(r"/(root|home|tmp|Users|work)/", text), path
            assert "data:image/jpeg" not in text
            texts += 1
    assert texts > 100


def test_how_often_samples_end_at_their_own_field_is_that_of_the_kept_runs():
    with (ROOT / "results" / "examples" / "settling.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {
        (loss, weight): [
            float(row["nearest_field_share"]) >= 0.95
            for row in rows
            if (row["loss"], row["reg_weight"]) == (loss, weight)
        ]
        for loss in ("MFCont", "MFCWMS")
        for weight in ("0", "10")
    }
    assert {len(runs) for runs in found.values()} == {10}
    cont, cont_apart, cwms, cwms_apart = (sum(runs) for runs in found.values())
    words = (
        f"in {cont} of 10 runs of MFCont and {cwms} of 10 of MFCWMS without the constraint, and in "
        f"{cont_apart} and {cwms_apart} of 10"
    )
    assert words in prose(ROOT / "docs" / "theory.md")


REPRODUCING = ROOT / "docs" / "reproducing.md"
PARTS = ("gamma", "beta", "moving_mean", "moving_variance")
OPTIONS = {"losses": "", "seeds": "1", "trials": "50", "repeats": "10", "values": "", "set": ""}


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
    rows = [row for row in tables(REPRODUCING) if len(row) == 5 and row[2][:1].isdigit()]
    return {row[0]: (row[1].strip("`"), int(row[2].replace(",", ""))) for row in rows}


@pytest.mark.parametrize("what", commands())
def test_a_command_for_a_table_of_the_paper_trains_as_often_as_the_page_says(what):
    command, number = commands()[what]
    assert asked_for(command).num_trainings == number


def test_the_page_has_every_table_and_figure_of_the_paper_and_covers_its_numbers():
    text = " ".join(row[0] for row in tables(REPRODUCING) if len(row) == 5)
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


def test_gpu_hours_of_the_page_are_those_of_the_clock():
    clock = json.loads((CUB / "headline" / "wall_clock.json").read_text())
    assert f"{sum(clock['seconds']) / 3600:.2f} GPU-hours" in prose(REPRODUCING)


@pytest.fixture(scope="module")
def conversion():
    spec = importlib.util.spec_from_file_location("cub_weights", CUB / "weights.py")
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
