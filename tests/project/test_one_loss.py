"""The page on one loss tells the runs that are kept."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from weiss.losses import make_loss
from weiss.theory.interactions import OneAgainstRest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "one_loss.md"
KEPT = ROOT / "results" / "one-loss"


def rows_of(name):
    with (KEPT / name).open() as file:
        return list(csv.DictReader(file))


def number(text):
    return None if text == "" else float(text)


def runs(**wanted):
    """The kept runs with these settings, numbers compared as such."""
    return [
        row
        for row in rows_of("runs.csv")
        if all(
            row[key] == value if isinstance(value, str) else number(row[key]) == value
            for key, value in wanted.items()
        )
    ]


def table_after(heading):
    text = PAGE.read_text()
    part = text[text.index(f"## {heading}") :].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def score(row):
    return f"{float(row['map_at_r']):.2f} ({row['best_epoch']})"


SOFT = {"alpha": 2.0, "beta": 20.0, "delta": 0.3, "margin": 0.0}
HARD = {"beta": 32.0, "delta": 1.0, "margin": 0.1, "fields_start": "random"}
REST = {"loss": "mf_rest_ms", "side": "384"}
FULL = REST | HARD | {"keeps": "full", "over": "present", "average": "classes"}
HALF = REST | HARD | {"keeps": "half", "over": "all", "average": "classes"}
HELD_OUT = {
    "ProxyAnchor": {"loss": "proxy_anchor", "side": "384"},
    "MFCWMS": {"loss": "mf_cwms", "side": "384"},
    **{f"MFRestMS, alpha {each}": FULL | {"alpha": float(each)} for each in (2, 8, 16, 32)},
    "ProxyAnchor's form, fields at 2000 x": HALF
    | {"alpha": 32.0, "average": "none", "divides_by": "all"},
    **{
        f"half, averages, over all, alpha {each}": HALF | {"alpha": float(each)}
        for each in (2, 8, 32)
    },
    "the same, delta 0.7": HALF | {"alpha": 32.0, "delta": 0.7},
    "the same, fields start at class means": HALF | {"alpha": 32.0, "fields_start": "class_means"},
    "half, averages, over all, soft": HALF | SOFT,
    "own samples alone, alpha 32": FULL | {"keeps": "own", "alpha": 32.0},
    "own samples alone, soft": FULL | SOFT | {"keeps": "own"},
}
REPEATED = "half, averages, over all, alpha 32"  # twice on CUB, with the same scores


def test_the_table_of_settings_is_that_of_the_runs():
    told = {cells[0]: cells[1:] for cells in table_after("Choosing the setting")}
    assert set(told) == set(HELD_OUT)
    shown = 0
    for name, settings in HELD_OUT.items():
        for cell, (data, fold) in zip(
            (told[name][0], *told[name][2:]), (("cars", 0), ("cub", 0), ("cub", 1)), strict=True
        ):
            found = runs(data=data, fold=float(fold), **settings)
            assert {score(row) for row in found} == ({cell} if cell else set()), name
            assert len(found) <= (2 if name == REPEATED else 1)
            shown += len(found)
        cars = runs(data="cars", fold=0.0, **settings)
        precision = [f"{float(row['precision_at_1']):.2f}" for row in cars]
        assert precision == ([told[name][1]] if told[name][1] else [])
    large = {"cub", "cars"}
    assert shown == sum(row["data"] in large and row["side"] == "384" for row in runs())


def test_the_table_of_resolution_is_that_of_the_runs():
    shown = 0
    for name, *cells in table_after("Resolution"):
        data, loss = name.split(", ")
        short = {"ProxyAnchor": "proxy_anchor", "MFCWMS": "mf_cwms"}[loss]
        for side, cell in zip(("256", "384", "original"), cells, strict=True):
            found = runs(data=data.lower(), loss=short, side=side, fold=0.0)
            assert [score(row) for row in found] == ([cell] if cell else [])
            shown += len(found)
    assert shown == 10


GLYPHS = {"MFCWMS": "mf_cwms", "ProxyAnchor": "proxy_anchor", "MFRestMS": "mf_rest_ms"}


def glyphs(name):
    """The settings that the first cell of a row of glyphs names."""
    loss, _, inside = name.split(", the")[0].rstrip(")").partition(" (")
    numbers = [float(each) for each in inside.split(", ")] if inside else []
    values = dict(zip(("alpha", "beta", "delta", "margin"), numbers, strict=False))
    return {"loss": GLYPHS[loss], **values} | ({"keeps": "full"} if loss == "MFRestMS" else {})


def test_the_table_of_glyphs_is_that_of_the_runs():
    told = table_after("From random weights")
    shown = 0
    for name, *cells in told:
        for data, cell in zip(("glyphs", "glyphs_many"), cells, strict=True):
            for seed, value in enumerate(cell.split(", ")):
                found = runs(data=data, seed=float(seed), **glyphs(name))
                assert [f"{float(row['map_at_r']):.2f}" for row in found] == (
                    [value] if value != "-" else []
                )
                shown += len(found)
    kept = [row for row in runs() if row["data"].startswith("glyphs")]
    assert shown == sum(row["keeps"] != "own" for row in kept)


@pytest.mark.parametrize(
    ("rival", "pairs"),
    [
        (
            "mf_cwms",
            {"glyphs": "+0.44 and +0.81 on glyphs, +0.63", "glyphs_many": "-0.08 and +0.26"},
        ),
        ("proxy_anchor", {"glyphs": "+2.60", "glyphs_many": "+3.39"}),
    ],
)
def test_differences_on_glyphs_are_paired_over_the_seeds_that_both_have(rival, pairs):
    text = " ".join(PAGE.read_text().split())
    for data, words in pairs.items():
        scores = [
            {row["seed"]: float(row["map_at_r"]) for row in found}
            for found in (
                runs(data=data, loss="mf_rest_ms", keeps="full", **SOFT),
                runs(data=data, loss=rival),
            )
        ]
        seeds = sorted(set(scores[0]) & set(scores[1]))
        assert seeds == ["1", "2"]
        lead = [scores[0][seed] - scores[1][seed] for seed in seeds]
        told = [float(each) for each in re.findall(r"[+-]\d\.\d\d", words)]
        measured = [*lead, np.mean(lead)] if rival == "mf_cwms" else [np.mean(lead)]
        assert told == pytest.approx(measured[: len(told)], abs=0.0051)
        assert words in text


def test_the_defaults_are_those_of_the_page():
    own = make_loss("mf_rest_ms", 3, 2).interactions
    words = f"alpha={own.alpha:g}, beta={own.beta:g}, delta={own.delta}, margin={own.margin}"
    assert f"`{words}`" in PAGE.read_text()
    assert own.sharing == OneAgainstRest("full", "present", "present")


def test_residuals_are_those_of_the_runs():
    """Cars, the default, ProxyAnchor, MFCWMS, and the soft setting; glyphs with two settings."""
    text = " ".join(PAGE.read_text().split())
    cars = [
        f"{float(row['residual']):.2f}"
        for name in ("MFRestMS, alpha 8", "ProxyAnchor", "MFCWMS", "own samples alone, soft")
        for row in runs(data="cars", fold=0.0, **HELD_OUT[name])
    ]
    first, second, third, soft = cars
    assert f"is {first} on Cars, of ProxyAnchor {second}, of MFCWMS {third}:" in text
    assert f"With the soft setting (own samples alone) it is {soft}, and" in text
    default, best, home = (
        f"{float(row['residual']):.2f}"
        for name in (
            "MFRestMS (8, 32, 1, 0.1)",
            "MFRestMS (2, 20, 0.3, 0)",
            "MFRestMS (8, 32, 0.3, 0)",
        )
        for row in runs(data="glyphs", seed=0.0, **glyphs(name))
    )
    assert f"residual {default} on glyphs, seed 0" in text
    assert f"fields at home ({best}), but so have worse ones: (8, 32, 0.3, 0) has {home}" in text


def test_a_curve_has_the_best_score_of_its_run_at_its_best_epoch():
    curves = {}
    for row in rows_of("curves.csv"):
        curves.setdefault(row["run"], {})[int(row["epoch"])] = float(row["map_at_r"])
    large = [row for row in runs() if row["data"] in {"cub", "cars"}]
    assert set(curves) == {row["run"] for row in large}
    for row in large:
        curve, best = curves[row["run"]], int(row["best_epoch"])
        assert sorted(curve) == list(range(1, int(row["epochs"]) + 1))
        assert (
            curve[best] == max(curve.values()) == pytest.approx(float(row["map_at_r"]), abs=0.051)
        )


def test_two_rows_asked_for_different_words_and_computed_the_same():
    """Evidence that a kernel did not know the words: the rows are told as what was computed."""
    first, second = ({**row} for row in runs(data="cub", alpha=32.0, **HALF))
    for name in ("run", "seconds"):
        first.pop(name), second.pop(name)
    assert first == second
