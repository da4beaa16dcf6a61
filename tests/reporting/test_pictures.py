"""A comparison has a picture, whatever its kind and however much of it is missing."""

import copy
import math
import re

import pytest
from reporting.builders import KINDS, make_summary, summarised

from weiss import figures
from weiss.reporting.pictures import draw_picture

pytestmark = pytest.mark.usefixtures("unrendered")


def texts(path):
    """What an SVG says: it draws letters as paths and notes each text beside them."""
    return [found.strip() for found in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_has_a_caption_needs_no_fonts_and_fits_a_page(tmp_path, monkeypatch, kind):
    monkeypatch.undo()  # this one is rendered
    caption = draw_picture(make_summary(kind), tmp_path / "a.svg")
    assert caption.endswith(".")
    assert texts(tmp_path / "a.svg")
    written = (tmp_path / "a.svg").read_text()
    assert "<text" not in written
    width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', written, re.DOTALL).group(1))
    assert 3.4 <= width / 72 <= 7.1


@pytest.mark.parametrize("kind", ["traditional", "dimension"])
def test_one_run_each_has_no_interval(tmp_path, kind):
    assert "one run each" in draw_picture(make_summary(kind, seeds=1), tmp_path / "a.svg")
    assert "one run each" not in draw_picture(make_summary(kind), tmp_path / "a.svg")


@pytest.mark.parametrize("kind", KINDS)
def test_without_scores_there_is_no_picture_and_no_file(tmp_path, kind):
    empty = make_summary(kind)
    for without in ({}, {"map_at_r": None}, {"excess": {"values": [], "mean": None}}):
        for row in empty["rows"]:
            row["scores"] = without
        assert draw_picture(empty, tmp_path / "a.svg") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_less_or_a_value_that_is_no_number_is_a_smaller_picture(tmp_path, kind):
    whole = make_summary(kind)
    whole["rows"][1]["scores"] = {}
    for entry in whole["rows"][0]["scores"].values():
        entry["values"][0] = math.nan
        entry["low"] = None
    nothing = {"values": [None], "mean": math.inf, "low": None}
    whole["rows"][2]["scores"] = dict.fromkeys(whole["rows"][2]["scores"], nothing)
    left = copy.deepcopy(whole)
    del left["rows"][-1]
    for number, each in enumerate((whole, left)):
        assert draw_picture(each, tmp_path / f"{number}.svg")


@pytest.mark.parametrize("kind", ["reality-check", "dimension"])
def test_the_untrained_network_is_a_level_and_never_a_curve(tmp_path, kind):
    caption = draw_picture(make_summary(kind), tmp_path / "a.svg")
    assert "Before training: pretrained 1" in caption
    # It lies far below the rest, so its height is said at the edge.
    said = [text for text in texts(tmp_path / "a.svg") if "pretrained" in text]
    assert all(re.fullmatch(r"↓ pretrained: 1[01].0", text) for text in said)
    alone = make_summary(kind)
    alone["rows"] = alone["rows"][-1:]
    assert draw_picture(alone, tmp_path / "b.svg") is None


def test_an_untrained_network_at_every_setting_is_one_level_at_the_highest(tmp_path):
    study = make_summary("dimension")
    key = study["axes"][0]["key"]
    reference = study["rows"].pop()
    for size, value in ((32, 0.2), (64, 0.28)):
        scores = {"map_at_r": summarised([value])}
        study["rows"].append({**reference, "at": {key: size}, "scores": scores})
    assert "Before training: pretrained, highest 28.0" in draw_picture(study, tmp_path / "a.svg")


@pytest.mark.parametrize("kind", ["traditional", "regularisation", "reality-check"])
def test_what_was_published_is_shown_and_said_if_asked_for(tmp_path, kind):
    path = tmp_path / "a.svg"
    assert "published" not in draw_picture(make_summary(kind), path)
    assert "published" in draw_picture(make_summary(kind), path, with_paper=True)
    assert texts(path).count("published") == 1


def test_what_was_published_has_its_interval(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(figures, "dependence", lambda *given, **options: seen.update(options))
    draw_picture(make_summary("regularisation"), tmp_path / "a.svg", with_paper=True)
    point = seen["published"]["MFCWMS"][-1]
    assert (point.x, point.low, point.mean, point.high) == pytest.approx((100, 24.8, 25.1, 25.4))


def test_a_reality_check_shows_both_ways_with_their_dimensions(tmp_path):
    draw_picture(make_summary("reality-check"), tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert {"concatenated, 512-d", "separated, 128-d"} <= set(found)


def test_scores_are_in_per_cent_and_costs_are_not(tmp_path):
    grid = make_summary("beta-delta", losses=["mf_cwms"])
    draw_picture(grid, tmp_path / "a.svg")
    means = {f"{100 * row['scores']['map_at_r']['mean']:.2f}" for row in grid["rows"][:-1]}
    assert means <= set(texts(tmp_path / "a.svg"))
    draw_picture(make_summary("classes", losses=["mf_cwms"]), tmp_path / "a.svg")
    assert {"0.1", "100"} <= set(texts(tmp_path / "a.svg"))


def test_a_heat_map_says_its_best_cell_and_hatches_what_is_absent(tmp_path):
    study = make_summary("beta-delta", losses=["mf_cwms"])
    best = max(study["rows"][:-1], key=lambda row: row["scores"]["map_at_r"]["mean"])
    beta, delta = best["at"].values()
    words = draw_picture(study, tmp_path / "a.svg")
    score = f"{100 * best['scores']['map_at_r']['mean']:.1f}"
    assert f"MFCWMS {score} at β {beta}, δ {delta}" in words
    assert "Hatched" not in words
    study["rows"][0]["scores"] = {}
    assert "Hatched: not measured." in draw_picture(study, tmp_path / "a.svg")


def test_ways_of_one_loss_go_by_their_names_and_those_of_several_by_both(tmp_path):
    draw_picture(make_summary("fields", losses=["mf_cwms"]), tmp_path / "one.svg")
    assert {"joint", "alternating"} <= set(texts(tmp_path / "one.svg"))
    draw_picture(make_summary("fields"), tmp_path / "two.svg")
    said = " ".join(texts(tmp_path / "two.svg"))
    assert "MFCWMS, joint" in said
    assert "ProxyAnchor, joint" in said


def test_rows_with_one_title_keep_apart(tmp_path):
    bench = make_summary("traditional", losses=["mf_cwms", "mf_cwms"])
    bench["rows"][1]["name"] = "other"
    draw_picture(bench, tmp_path / "a.svg")
    said = texts(tmp_path / "a.svg")
    assert said.count("MFCWMS") == 2
    assert said.count("(other)") == 1


def test_networks_stand_as_points_where_nothing_was_asked_of_the_spread(tmp_path):
    study = make_summary("breakdown")
    assert "marks" not in draw_picture(study, tmp_path / "a.svg")
    scores = study["rows"][0]["scores"]
    for network in ("trained", "pretrained"):
        row = {"name": network, "loss": "mf_cwms", "title": "MFCWMS", "network": network}
        study["rows"].append({**row, "at": {}, "scores": scores})
    assert "Large marks are networks" in draw_picture(study, tmp_path / "a.svg")
    assert {"trained network", "pretrained network"} <= set(texts(tmp_path / "a.svg"))


def test_costs_name_the_losses_that_failed(tmp_path):
    study = make_summary("classes")
    study["rows"][1] |= {"failed": {"mf_cwms/num_classes-1000": "out of memory"}, "scores": {}}
    assert "Without a point where it failed: MFCWMS." in draw_picture(study, tmp_path / "a.svg")


def test_a_cost_is_drawn_at_its_median(tmp_path):
    study = make_summary("classes", losses=["mf_cwms"])
    for row in study["rows"]:
        times = {"values": [1.0, 2.0, 99.0], "mean": 34.0, "median": 2.0, "low": 1.5, "high": 3.0}
        row["scores"] = {"milliseconds": times, "megabytes": summarised([1.0])}
    assert draw_picture(study, tmp_path / "a.svg")
    # A mean of 34 would lie beyond its own quartiles, and stretch the axis.
    assert not {"10", "20"} & set(texts(tmp_path / "a.svg"))


def test_a_comparison_under_way_says_so(tmp_path):
    bench = make_summary("traditional", is_complete=False, num_done=5)
    assert "Not complete: 5 of 9 units" in draw_picture(bench, tmp_path / "a.svg")
