"""The page on one loss tells the runs that are kept."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from weiss.losses import make_loss
from weiss.losses.rest_multi_similarity import MANY_CLASSES, SHORT_REACH
from weiss.theory.interactions import OneAgainstRest
from weiss.theory.random_directions import random_directions

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
    start = text.index(f"## {heading}") if heading else 0
    part = text[start:].split("\n## ")[0]
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
SETS = {"glyphs": (241, 128), "glyphs_many": (573, 128)}
"""Classes that train on held-out folds, and dimensions."""
WHOLE = {"loss": "mf_rest_ms", "keeps": "full", "over": "present"}


def by_rule(data):
    """Beta and margin of the default, as the table of runs has them."""
    return {
        key: float(f"{value:.6g}")
        for key, value in random_directions(*SETS[data])._asdict().items()
    }


def glyphs(name, data):
    """The settings that the first cell of a row of glyphs names."""
    loss, _, inside = name.split(", the")[0].rstrip(")").partition(" (")
    words = inside.split(", ") if inside else []
    values = dict(zip(("alpha", "beta", "delta", "margin"), words, strict=False))
    numbers = {
        key: by_rule(data)[key] if word == "auto" else float(word) for key, word in values.items()
    }
    return (WHOLE if loss == "MFRestMS" else {"loss": GLYPHS[loss]}) | numbers


AROUND = {  # beta and margin rounded, but in the first two and the last two
    "the default": {"beta": None, "margin": None},
    "half of beta": {"beta": 0.5, "margin": None},
    '`keeps="half"`': {"beta": None, "margin": None, "keeps": "half"},
    '`over="all"`': {"beta": None, "margin": None, "over": "all"},
}
ROUNDED = {
    "glyphs": {"beta": 18.74, "margin": 0.207},
    "glyphs_many": {"beta": 20.16, "margin": 0.2227},
}


def around(name, data):
    """The settings that a row of the table around the default names."""
    if name not in AROUND:
        words = [] if name.startswith("the same") else name.split(", ")
        told = dict(each.split() for each in words)
        return {"alpha": 8.0, "delta": 1.0} | ROUNDED[data] | {k: float(v) for k, v in told.items()}
    settings = AROUND[name] | {"margin": by_rule(data)["margin"]}
    beta = random_directions(*SETS[data]).beta * (settings["beta"] or 1.0)
    return {"alpha": 8.0, "delta": 1.0} | settings | {"beta": float(f"{beta:.6g}")}


def scores(data, **settings):
    """MAP@R of the kept runs with these settings, by seed."""
    return {int(row["seed"]): float(row["map_at_r"]) for row in runs(data=data, **settings)}


def test_the_tables_of_glyphs_are_those_of_the_runs():
    shown = set()
    for name, *cells in table_after("From random weights"):
        if not name.strip("-"):  # the head of the second table
            continue
        for data, cell in zip(SETS, cells, strict=True):
            if "MF" in name or name == "ProxyAnchor":
                settings = glyphs(name, data)
                values = dict(enumerate(cell.split(", ")))
            else:
                settings, values = WHOLE | around(name, data), {0: cell or "-"}
            found = scores(data, **settings)
            for seed, value in values.items():
                assert (f"{found[seed]:.2f}" if seed in found else "-") == value, name
            shown |= {row["run"] for row in runs(data=data, **settings)}
    kept = {row["run"] for row in runs() if row["data"].startswith("glyphs")}
    own = {row["run"] for row in runs(keeps="own")}
    assert shown == kept - own


def rule(data):
    return scores(data, **WHOLE, alpha=8.0, delta=1.0, **by_rule(data))


@pytest.mark.parametrize(
    ("rival", "words"),
    [
        ({"loss": "mf_cwms"}, "0.90 and 1.22 ahead of MFCWMS"),
        ({"loss": "proxy_anchor"}, "2.87 and 4.52 ahead of ProxyAnchor"),
        (WHOLE | SOFT, "(2, 20, 0.3, 0), is 0.34 and 1.31 behind the default"),
        (
            WHOLE | {"alpha": 8.0, "beta": 32.0, "delta": 1.0, "margin": 0.1},
            "seed 0 loses 0.85 and 2.63",
        ),
        (WHOLE | {"half of": "beta"}, "half of it, over three seeds, 1.11 and 0.66"),
    ],
)
def test_leads_on_glyphs_are_paired_over_the_seeds_that_both_have(rival, words):
    leads = []
    for data in SETS:
        softer = "half of" in rival
        settings = WHOLE | around("half of beta", data) if softer else rival
        mine, other = rule(data), scores(data, **settings)
        both = sorted(set(mine) & set(other))
        lead = np.mean([mine[seed] - other[seed] for seed in both])
        leads.append(-lead if softer else lead)
    told = [float(each) for each in re.findall(r"\d+\.\d\d", words)]
    assert leads == pytest.approx(told, abs=0.0051)
    assert words in " ".join(PAGE.read_text().split())


@pytest.mark.parametrize("data", list(SETS))
def test_the_test_on_glyphs_is_that_of_the_kept_comparison(data):
    summary = json.loads((KEPT / data / "summary.json").read_text())
    cells = next(row for row in table_after("") if row[0].startswith(f"[{data}]"))
    assert summary["is_complete"]
    columns = dict(zip(("proxy_anchor", "mf_cwms", "mf_rest_ms"), cells[1:], strict=False))
    for row in summary["rows"]:
        if row["loss"] in columns:
            score = row["scores"]["map_at_r"]
            half = score["high"] - score["mean"]
            assert columns[row["loss"]] == f"{100 * score['mean']:.2f} ± {100 * half:.2f}"
            assert len(score["values"]) == 4
    against = {
        test["first"]: [-100 * test[key] for key in ("difference", "high", "low")]
        for test in summary["tests"]
        if (test["second"], test["metric"]) == ("mf_rest_ms", "map_at_r")
    }
    mean, low, high = min(against.values())
    assert cells[4] == f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


VIEWS = {
    "MFCWMS": ("mf_cwms", ""),
    "ProxyAnchor": ("proxy_anchor", ""),
    "MFRestMS (8, auto, 1, auto), the long reach": ("mf_rest_ms", ""),
    "MFRestMS (0.01, 80, 0.2, 0), the short reach": ("mf_rest_ms", "(0.01, 80, 0.2, 0)"),
    "MFRestMS (8, 20, 1, 0.24)": ("mf_rest_ms", "beta 20, margin 0.24"),
    "MFRestMS (2, 20, 0.3, 0)": ("mf_rest_ms", "(2, 20, 0.3, 0)"),
    "MFRestMS (0.01, auto, 0.5, 0)": ("mf_rest_ms", "alpha 0.01, delta 0.5, margin 0"),
}


def test_the_table_of_photographs_is_that_of_the_heads():
    rows = [row for row in rows_of("views.csv") if row["classes"] == "photographs"]
    told = {name: cells for name, *cells in table_after("Many small classes of photographs")[1:]}
    assert set(told) == set(VIEWS)
    for name, (loss, settings) in VIEWS.items():
        for count, cell in zip(("2000", "500", "100"), told[name], strict=True):
            means = []
            for steps in ("198", "792"):
                wanted = (count, loss, settings, steps)
                found = [
                    float(row["map_at_r"])
                    for row in rows
                    if (row["count"], row["loss"], row["settings"], row["steps"]) == wanted
                ]
                assert len(found) == 2
                means.append(f"{np.mean(found):.1f}")
            assert ", ".join(means) == cell


def test_differences_of_heads_are_those_of_the_heads():
    def mean(count, loss, settings="", steps="792", classes="photographs"):
        wanted = (classes, count, loss, settings, steps)
        keys = ("classes", "count", "loss", "settings", "steps")
        found = [row for row in rows_of("views.csv") if tuple(row[key] for key in keys) == wanted]
        return np.mean([float(row["map_at_r"]) for row in found])

    text = " ".join(PAGE.read_text().split())
    leads = {n: mean(n, "mf_rest_ms") - mean(n, "mf_cwms") for n in ("2000", "500", "100")}
    assert f"ahead of the long reach, by {-leads['2000']:.1f} at the end" in text
    told = f"{leads['500']:.1f} ahead with 500 classes, {leads['100']:.1f} with 100"
    assert told in text
    point = mean("2000", "mf_rest_ms", "alpha 0.01, delta 0.5, margin 0")
    assert f"MFRestMS has {point - mean('2000', 'mf_cwms'):.1f} more than MFCWMS at 2,000" in text
    sharp = {
        n: mean(n, "mf_rest_ms", "beta 20, margin 0.24") - mean(n, "mf_rest_ms") for n in leads
    }
    assert sharp["100"] < 0 > sharp["500"]
    assert f"is {sharp['2000']:.1f} ahead of it at 2,000" in text
    losses = ("mf_cwms", "mf_rest_ms", "proxy_anchor")
    first, last = (
        [f"{mean('50', loss, steps=steps, classes='species'):.1f}" for loss in losses]
        for steps in ("198", "792")
    )
    assert first[0] == first[1]
    assert f"have {first[0]} on the other species, ProxyAnchor {first[2]}; at the end" in text
    assert f"they have {last[0]}, {last[1]} and {last[2]}." in text


COLUMNS = (("well", "1000"), ("well", "100"), ("little", "1000"))
CHARACTERS = {
    "MFCWMS": ("mf_cwms", ""),
    "ProxyAnchor": ("proxy_anchor", ""),
    "MFRestMS, the long reach": ("mf_rest_ms", "far"),
    "MFRestMS, the short reach": ("mf_rest_ms", "near"),
}


def test_the_table_of_characters_and_its_leads_are_those_of_the_runs():
    rows = rows_of("characters.csv")
    ends = {}
    for name, *cells in table_after("How far the repulsion reaches"):
        for column, cell in zip(COLUMNS, cells, strict=True):
            wanted = (*column, *CHARACTERS[name], "12")
            keys = ("pretrained", "classes", "loss", "settings", "epoch")
            found = [row["map_at_r"] for row in rows if tuple(row[key] for key in keys) == wanted]
            assert ", ".join(found) == cell
            assert len(found) == 2
            ends[name, column] = np.mean([float(each) for each in found])
    assert {name for name, _ in ends} == set(CHARACTERS)
    paper, anchor, long, short = (
        np.array([ends[name, column] for column in COLUMNS]) for name in CHARACTERS
    )
    assert all(anchor < np.maximum(long, short))
    assert abs(short[0] - paper[0]) < 0.3
    many, few, _ = short - long
    text = " ".join(PAGE.read_text().split())
    assert f"the short reach**, {many:.1f} ahead of the long one" in text
    assert f"for the long one**, {-few:.1f} ahead of the short one" in text
    before = {row["pretrained"]: float(row["map_at_r"]) for row in rows if row["epoch"] == "0"}
    told = f"it has MAP@R {before['well']:.1f} or {before['little']:.1f} on what is searched"
    assert told in text
    tried = {row["tried"]: row["map_at_r"] for row in rows_of("tried.csv")}
    for words in ("ProxyAnchor has {}", "the long reach {}", "the short reach {}"):
        assert words.format(tried[words.removesuffix(" {}").removesuffix(" has")]) in text


def test_the_table_of_what_was_tried_is_that_of_the_trials():
    tried = rows_of("tried.csv")
    for what, *cells in table_after("Tried on top"):
        for data, cell in zip((*SETS, "photographs"), cells, strict=True):
            found = sorted(
                (row["seed"], row["map_at_r"])
                for row in tried
                if (row["data"], row["tried"]) == (data, "default" if "the d" in what else what)
            )
            values = [value for _, value in found]
            if what == "the default" and data in SETS:
                values = [f"{value:.2f}" for value in rule(data).values()]
            assert ", ".join(values) == cell, what
    falls, fields = "beta falls to half of its value", "four fields a class"
    gain = {
        (what, data): np.mean(
            [
                float(row["map_at_r"]) - rule(data)[int(row["seed"])]
                for row in tried
                if (row["data"], row["tried"]) == (data, what)
            ]
        )
        for what in (falls, fields)
        for data in SETS
    }
    text = " ".join(PAGE.read_text().split())
    words = f"{gain[falls, 'glyphs']:+.2f} on glyphs and {gain[falls, 'glyphs_many']:+.2f} on"
    assert words in text
    assert f"four have {gain[fields, 'glyphs']:+.2f} on glyphs over three seeds" in text


def test_the_defaults_are_those_of_the_page():
    text = " ".join(PAGE.read_text().split())
    own = make_loss("mf_rest_ms", 3, 2).interactions
    assert f"`alpha={own.alpha:g}`, `delta={own.delta}`" in PAGE.read_text()
    for _, classes, size, beta, margin in table_after("A rate and a margin from the theory"):
        rule = random_directions(int(classes.replace(",", "")), int(size))
        assert (beta, margin) == (f"{rule.beta:.1f}", f"{rule.margin:.3f}")
    settings = [f"{name} {value:g}" for name, value in SHORT_REACH._asdict().items()]
    assert f"{', '.join(settings[:3])} and no margin, are the short reach" in text
    assert f"below {MANY_CLASSES:,} classes the long reach" in text
    assert own.sharing == OneAgainstRest("full", "present", "present")


def test_residuals_are_those_of_the_runs():
    """Cars, the default, ProxyAnchor, MFCWMS, and the soft setting; glyphs with two settings."""
    text = " ".join(PAGE.read_text().split())
    cars = [
        f"{float(row['residual']):.2f}"
        for name in ("MFRestMS, alpha 8", "ProxyAnchor", "MFCWMS")
        for row in runs(data="cars", fold=0.0, **HELD_OUT[name])
    ]
    first, second, third = cars
    assert f"is {first} on Cars (held out), of ProxyAnchor {second}, of MFCWMS {third}:" in text
    home, away = (
        f"{float(row['residual']):.2f}"
        for name in ("delta 0.3, margin 0", "the default")
        for row in runs(data="glyphs_many", seed=0.0, **WHOLE, **around(name, "glyphs_many"))
    )
    assert f"at home in their classes (residual {home}), at 1 they are away ({away})" in text
    default = runs(data="glyphs", seed=0.0, **WHOLE, **around("the default", "glyphs"))[0]
    assert f"residual {float(default['residual']):.2f} on glyphs, seed 0" in text


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
