"""The kept results: every number that is told is that of a run that is kept."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from weiss.statistics import t_interval

ROOT = Path(__file__).parent.parent
CUB = ROOT / "results" / "cub-resnet50"
COMPARISONS = sorted(path.parent for path in CUB.glob("*/summary.json"))
SCORES = ("map_at_r", "precision_at_1", "r_precision", "epoch")


def summary(name):
    return json.loads((CUB / name / "summary.json").read_text())


def tables(path):
    """The rows of all tables of a Markdown file, as lists of cells."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


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


def told(row, name, factor=100.0):
    """A score with its interval as tables have it."""
    interval = t_interval(factor * np.array(row["scores"][name]["values"]))
    return interval.mean, interval.high - interval.mean


@pytest.mark.parametrize("path", [CUB / "README.md", ROOT / "README.md"], ids=["kept", "project"])
def test_the_headline_is_that_of_the_summary(path):
    for row in summary("headline")["rows"]:
        title = "the pretrained network" if row["title"] == "pretrained" else row["title"]
        try:
            cells = row_of(path, row["title"] if path.parent == CUB else title)
        except StopIteration:
            assert row["title"] == "MFCWMS, delta 0.8"  # not in the short table
            continue
        for name, cell in zip(("map_at_r", "precision_at_1"), cells[1:3], strict=True):
            mean, half = told(row, name)
            assert cell == f"{mean:.2f} ± {half:.2f}", (row["title"], name)
        assert cells[-1] == str(len(row["runs"]))
        if row["title"] != "pretrained":
            mean, half = told(row, "epoch", 1.0)
            epoch = cells[4] if path.parent == CUB else cells[3]
            assert re.fullmatch(rf"{mean:g} ± {half:.{1 if half < 10 else 0}f}", epoch)
            if path.parent == CUB:
                assert cells[5] == f"{mean - 5:g}"


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
