"""The kept results: every number that is told is that of a run that is kept."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from weiss.evaluation.statistics import t_interval

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
    """A score as tables have it: mean and interval, or both values of two runs."""
    values = values_of(row, name, factor)
    if len(values) == 2:
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
        title = "the pretrained network" if row["title"] == "pretrained" else row["title"]
        listed = [cells for cells in tables(path) if cells[0].split(",")[0] == title]
        for cells in listed:
            assert cells[1:3] == [told(row, "map_at_r"), told(row, "precision_at_1")]
            assert cells[3] == ("" if title[:3] == "the" else told(row, "epoch", 1.0, 0))
            found += 1
    assert found == 6


def curves(loss):
    files = sorted((CUB / "headline" / loss).glob("seed-*/metrics.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[100 * line["evaluation"]["map_at_r"] for line in run] for run in lines]


@pytest.mark.parametrize(
    ("loss", "title"),
    [("proxy_anchor", "ProxyAnchor"), ("mf_contrastive", "MFCont"), ("mf_cwms", "MFCWMS")],
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
