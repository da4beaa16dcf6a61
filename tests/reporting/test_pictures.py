"""A comparison has a picture, whatever its kind and however much of it is missing."""

import copy
import math
import re

import pytest

from weiss.reporting.pictures import draw_picture
from weiss.reporting.published import Published

TITLES = {"mf_cwms": "MFCWMS", "proxy_anchor": "ProxyAnchor", "untrained": "untrained"}
AXES = {
    "traditional": [],
    "reality-check": [],
    "dimension": [("backbone.embedding_size", "embedding dimensions", [32, 64, 128], True)],
    "batch-size": [("train.batch_size", "batch size", [30, 60], False)],
    "regularisation": [("loss.reg_weight", "weight of the soft constraint", [0, 0.1, 10], True)],
    "beta-delta": [("loss.beta", "beta", [50, 80], False), ("loss.delta", "delta", [0.1], False)],
    "fields": [("train.fields", "fields", ["learned", "solved for"], False)],
    "classes": [("num_classes", "classes", [100, 1000], True)],
    "breakdown": [("spread", "spread", [0.0, 0.1, 0.2], False)],
}
METRICS = {
    "reality-check": ["concatenated.map_at_r", "separated.map_at_r"],
    "classes": ["milliseconds", "megabytes"],
    "breakdown": ["spread", "excess"],
}
KINDS = list(AXES)


def score(values):
    mean = sum(values) / len(values)
    ends = (min(values), max(values)) if len(values) > 1 else (None, None)
    return {"values": values, "mean": mean, "low": ends[0], "high": ends[1]}


def places(axes):
    """Every combination of an axis' values, as a row's "at"."""
    if not axes:
        return [{}]
    key, _, values, _ = axes[0]
    return [{key: value, **rest} for value in values for rest in places(axes[1:])]


def summary(kind, *, seeds=3, losses=("mf_cwms", "proxy_anchor")):
    rows = []
    for loss in [*losses, "untrained"]:
        for number, at in enumerate(places(AXES[kind]) if loss != "untrained" else [{}]):
            base = 0.05 if loss == "untrained" else 0.3 + 0.01 * number
            count = 1 if loss == "untrained" else seeds
            scores = {
                metric: score([base + 0.002 * seed for seed in range(count)])
                for metric in METRICS.get(kind, ["map_at_r"])
            }
            name = "_".join([loss, *map(str, at.values())])
            rows.append({"name": name, "loss": loss, "title": TITLES[loss], "at": at})
            rows[-1] |= {"scores": scores, "runs": [], "failed": {}, "settings": {}}
    names = ("key", "label", "values", "log")
    return {
        "format": 1,
        "kind": kind,
        "embedding_size": 128,
        "batch_size": 64,
        "measured_on": "test",
        "is_complete": True,
        "num_units": 12,
        "num_done": 12,
        "axes": [dict(zip(names, axis, strict=True)) for axis in AXES[kind]],
        "rows": rows,
    }


def texts(path):
    """What an SVG of matplotlib says: it draws letters as paths and notes each text beside them."""
    return [found.strip() for found in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_picture_and_a_caption(tmp_path, kind):
    caption = draw_picture(summary(kind), tmp_path / "a.svg")
    assert caption.endswith(".")
    assert texts(tmp_path / "a.svg")


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("kind", ["traditional", "dimension"])
def test_one_run_each_has_no_interval(tmp_path, kind):
    assert "one run each" in draw_picture(summary(kind, seeds=1), tmp_path / "a.svg")
    assert "one run each" not in draw_picture(summary(kind), tmp_path / "a.svg")


@pytest.mark.parametrize(("kind", "suffix"), [("regularisation", "pdf"), ("traditional", "svg")])
def test_the_same_summary_gives_the_same_bytes(tmp_path, kind, suffix):
    first, second = (tmp_path / f"{name}.{suffix}" for name in "ab")
    captions = [draw_picture(summary(kind), path) for path in (first, second)]
    assert captions[0] == captions[1]
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_without_scores_there_is_no_picture_and_no_file(tmp_path, kind):
    empty = summary(kind)
    for without in ({}, None, {"map_at_r": None}, {"excess": {"values": [], "mean": None}}):
        for row in empty["rows"]:
            row["scores"] = without
        assert draw_picture(empty, tmp_path / "a.svg") is None
    assert draw_picture({"kind": kind}, tmp_path / "a.svg") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_less_or_a_value_that_is_no_number_is_a_smaller_picture(tmp_path, kind):
    whole = summary(kind)
    whole["rows"][1]["scores"] = {}
    for entry in whole["rows"][0]["scores"].values():
        entry["values"][0] = math.nan
        entry["low"] = None
    for row in whole["rows"][2:3]:
        row["scores"] = {
            key: {"values": [None], "mean": math.inf, "low": None} for key in row["scores"]
        }
    left = copy.deepcopy(whole)
    del left["rows"][-1]
    for number, each in enumerate((whole, left)):
        assert draw_picture(each, tmp_path / f"{number}.svg")


@pytest.mark.parametrize("kind", ["reality-check", "dimension"])
def test_the_untrained_network_is_a_level_and_never_a_curve(tmp_path, kind):
    caption = draw_picture(summary(kind), tmp_path / "a.svg")
    assert "Before training: untrained 5.0" in caption
    # It lies far below the rest, so its height is said at the edge.
    said = [text for text in texts(tmp_path / "a.svg") if "untrained" in text]
    assert set(said) == {"↓ untrained: 5.0"}
    alone = summary(kind, losses=())
    assert draw_picture(alone, tmp_path / "b.svg") is None


@pytest.mark.usefixtures("unrendered")
def test_an_untrained_network_at_every_setting_is_one_level_at_the_highest(tmp_path):
    study = summary("dimension")
    key = study["axes"][0]["key"]
    reference = study["rows"].pop()
    for size, value in ((32, 0.2), (64, 0.28)):
        scores = {"map_at_r": score([value])}
        study["rows"].append({**reference, "at": {key: size}, "scores": scores})
    assert "Before training: untrained, highest 28.0" in draw_picture(study, tmp_path / "a.svg")


def test_what_was_published_is_shown_and_said(tmp_path):
    number = Published(25.3, 0.3)
    given = {
        "traditional": {"MFCWMS": number},
        "regularisation": {"MFCWMS": {0: number, 0.1: number}},
        "reality-check": {"MFCWMS": {"concatenated": number}},
    }
    for kind, published in given.items():
        path = tmp_path / f"{kind}.svg"
        assert "published" in draw_picture(summary(kind), path, published=published)
        assert texts(path).count("published") == 1


def test_a_reality_check_shows_both_ways_with_their_dimensions(tmp_path):
    draw_picture(summary("reality-check"), tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert {"concatenated, 512 dimensions", "separated, 128 dimensions"} <= set(found)


def test_scores_are_in_per_cent_and_costs_are_not(tmp_path):
    draw_picture(summary("beta-delta", seeds=1), tmp_path / "a.svg")
    assert {"30.0", "31.0"} <= set(texts(tmp_path / "a.svg"))
    draw_picture(summary("classes"), tmp_path / "a.svg")
    assert {"0.2", "0.5"} <= set(texts(tmp_path / "a.svg"))


@pytest.mark.usefixtures("unrendered")
def test_a_heat_map_says_its_best_cell_and_hatches_what_is_absent(tmp_path):
    study = summary("beta-delta", losses=["mf_cwms"])
    words = draw_picture(study, tmp_path / "a.svg")
    assert "MFCWMS 31.2 at beta 80, delta 0.1" in words
    assert "Hatched" not in words
    study["rows"][0]["scores"] = {}
    assert "Hatched: not measured." in draw_picture(study, tmp_path / "a.svg")


def test_ways_of_one_loss_go_by_their_names_and_those_of_several_by_both(tmp_path):
    draw_picture(summary("fields", losses=["mf_cwms"]), tmp_path / "one.svg")
    assert {"learned", "solved for"} <= set(texts(tmp_path / "one.svg"))
    draw_picture(summary("fields"), tmp_path / "two.svg")
    said = " ".join(texts(tmp_path / "two.svg"))
    assert "MFCWMS, learned" in said
    assert "ProxyAnchor, learned" in said


def test_rows_with_one_title_keep_apart(tmp_path):
    bench = summary("traditional", losses=["mf_cwms", "mf_cwms"])
    bench["rows"][1]["name"] = "other"
    draw_picture(bench, tmp_path / "a.svg")
    said = texts(tmp_path / "a.svg")
    assert said.count("MFCWMS") == 2
    assert said.count("(other)") == 1


def test_networks_stand_as_points_where_nothing_was_asked_of_the_spread(tmp_path):
    study = summary("breakdown")
    words = draw_picture(study, tmp_path / "a.svg")
    assert "Labelled marks are networks" in words
    assert "untrained" in texts(tmp_path / "a.svg")
    del study["rows"][-1]
    assert "marks" not in draw_picture(study, tmp_path / "a.svg")
    scores = study["rows"][0]["scores"]
    for network in ("trained", "pretrained"):
        row = {"name": network, "loss": "mf_cwms", "title": "MFCWMS", "network": network}
        study["rows"].append({**row, "at": {}, "scores": scores})
    assert "marks" in draw_picture(study, tmp_path / "a.svg")
    assert {"trained", "pretrained"} <= set(texts(tmp_path / "a.svg"))


@pytest.mark.usefixtures("unrendered")
def test_costs_name_the_losses_that_failed(tmp_path):
    study = summary("classes")
    study["rows"][1] |= {"failed": {"mf_cwms/num_classes-1000": "out of memory"}, "scores": {}}
    assert "Without a point where it failed: MFCWMS." in draw_picture(study, tmp_path / "a.svg")


def test_a_cost_is_drawn_at_its_median_and_may_be_a_bare_number(tmp_path):
    study = summary("classes", losses=["mf_cwms"])
    for row in study["rows"]:
        times = {"values": [1.0, 2.0, 99.0], "mean": 34.0, "median": 2.0, "low": 1.5, "high": 3.0}
        row["scores"] = {"milliseconds": times, "megabytes": 1.0}
    assert draw_picture(study, tmp_path / "a.svg")
    # A mean of 34 would lie beyond its own quartiles, and stretch the axis.
    assert not {"10", "20"} & set(texts(tmp_path / "a.svg"))


@pytest.mark.usefixtures("unrendered")
def test_a_comparison_under_way_says_so(tmp_path):
    bench = summary("traditional") | {"is_complete": False, "num_done": 5}
    assert "Not complete: 5 of 12 units" in draw_picture(bench, tmp_path / "a.svg")
