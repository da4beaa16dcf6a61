"""Figures: what they show is what was given, what is absent is left out, bytes do not vary."""

import itertools
import math
import os
import re
import subprocess
import sys

import pytest
import torch

from weiss import figures
from weiss.data import from_arrays
from weiss.figures import Boxes, Point, drawing
from weiss.figures.sheet import draw_sheet


def lines(epochs=4, evaluated=True, order=("class_mean_length", "residual", "violating_share")):
    made = []
    for epoch in range(1, epochs + 1):
        line = {
            "epoch": epoch,
            "phase": "warm-up" if epoch == 1 else "training",
            "loss": 1 / epoch,
            "lr": {"network": 1e-4, "fields": 0.2},
        }
        if evaluated and epoch % 2 == 0:
            values = {"precision_at_1": 0.8, "r_precision": 0.6, "map_at_r": 0.1 * epoch}
            line["evaluation"] = values | {"queries": 10, "queries_left_out": 0}
        known = {
            "class_mean_length": [0.2, 0.3, 0.4, 0.5, 0.6],
            "residual": [10.0**-epoch * factor for factor in (1, 2, 3, 4, 5)],
            "violating_share": 0.1 / epoch,
        }
        line["order"] = {key: known[key] for key in order}
        made.append(line)
    return made


def texts(path):
    """What an SVG of matplotlib says: it draws letters as paths and notes each text beside them."""
    return [found.strip() for found in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)]


def drawn(function, *args, **options):
    """The texts of a figure."""
    path = options.pop("folder") / "figure.svg"
    function(*args, path, **options)
    return texts(path)


def test_learning_curves_show_loss_retrieval_and_rates_and_mark_the_best_epoch(tmp_path):
    found = drawn(figures.learning_curves, lines(), folder=tmp_path, best_epoch=4, title="A run")
    assert {"A run", "Training loss", "Retrieval (%)", "Learning rate"} <= set(found)
    assert {"MAP@R", "R-precision", "P@1", "network", "fields", "warm-up"} <= set(found)
    assert "best: epoch 4" in found
    assert "MAP@R 40.0 %" in found


def test_a_panel_without_values_is_left_out(tmp_path):
    found = drawn(figures.learning_curves, lines(evaluated=False), folder=tmp_path)
    assert "Training loss" in found
    assert not {"Retrieval (%)", "MAP@R"} & set(found)


def test_warm_up_is_shaded_where_there_was_one(tmp_path):
    trained = [{**line, "phase": "training"} for line in lines()]
    assert "warm-up" not in drawn(figures.learning_curves, trained, folder=tmp_path)
    told = drawn(figures.learning_curves, trained, folder=tmp_path, warmup_epochs=2)
    assert "warm-up" in told


def test_a_learning_rate_of_zero_has_no_place_on_a_logarithmic_axis(tmp_path):
    frozen = [{**line, "lr": {"network": 0.0, "fields": 0.2}} for line in lines()]
    found = drawn(figures.learning_curves, frozen, folder=tmp_path)
    assert "fields" in found
    assert "network" not in found


def test_a_loss_that_is_no_number_is_a_gap(tmp_path):
    diverged = lines()
    diverged[-1]["loss"] = math.nan
    diverged[-2]["loss"] = None
    assert "Training loss" in drawn(figures.learning_curves, diverged, folder=tmp_path)


def test_one_epoch_is_a_figure_too(tmp_path):
    assert "Training loss" in drawn(figures.learning_curves, lines(1), folder=tmp_path)
    assert "epoch" in drawn(figures.order_parameters, lines(1), folder=tmp_path)


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_best_epoch_must_have_been_evaluated(tmp_path, evaluated):
    known = "2, 4" if evaluated else "none"
    message = f"best_epoch must be an epoch that was evaluated; got 3, evaluated: {known}"
    with pytest.raises(ValueError, match=message):
        figures.learning_curves(lines(evaluated=evaluated), tmp_path / "a.png", best_epoch=3)
    assert not list(tmp_path.iterdir())


def test_no_lines_are_no_figure(tmp_path):
    with pytest.raises(ValueError, match="at least one line with values; got 0"):
        figures.learning_curves([], tmp_path / "a.png")
    with pytest.raises(ValueError, match="an entry 'order'.*none of 0 has"):
        figures.order_parameters([], tmp_path / "a.png")


def test_order_parameters_have_three_panels_and_say_what_the_bands_are(tmp_path):
    found = drawn(figures.order_parameters, lines(), folder=tmp_path, title="Order")
    assert {"Order", "Length of class means", "Residual of self-consistency"} <= set(found)
    assert "Violating pairs of fields (%)" in found
    assert {"median of the classes", "25 to 75 %", "5 to 95 %"} <= set(found)


def test_losses_without_fields_have_one_order_parameter(tmp_path):
    found = drawn(figures.order_parameters, lines(order=["class_mean_length"]), folder=tmp_path)
    assert "Length of class means" in found
    assert not {"Residual of self-consistency", "Violating pairs of fields (%)"} & set(found)
    found = drawn(figures.order_parameters, lines(order=["violating_share"]), folder=tmp_path)
    assert "Violating pairs of fields (%)" in found
    assert "median of the classes" not in found


@pytest.mark.parametrize("kept", [{}, None, "absent"])
def test_no_order_parameter_at_all_is_refused(tmp_path, kept):
    without = [{**line, "order": kept} for line in lines()]
    if kept == "absent":
        without = [{key: line[key] for key in line if key != "order"} for line in lines()]
    with pytest.raises(ValueError, match="must have an entry 'order'.*none of 4 has"):
        figures.order_parameters(without, tmp_path / "a.png")


def test_a_residual_over_decades_is_logarithmic_and_one_with_zeros_is_not(tmp_path):
    decades = drawn(figures.order_parameters, lines(order=["residual"]), folder=tmp_path)
    assert any("10^{-3}" in text for text in decades)
    zeros = lines(order=["residual"])
    zeros[0]["order"]["residual"][0] = 0.0
    found = drawn(figures.order_parameters, zeros, folder=tmp_path)
    assert not any("10^{-3}" in text for text in found)


def test_nothing_violated_throughout_is_a_line_at_the_bottom(tmp_path):
    settled = [{**line, "order": {"violating_share": 0.0}} for line in lines()]
    assert "0.0" in drawn(figures.order_parameters, settled, folder=tmp_path)


def test_order_parameters_that_are_no_numbers_are_gaps(tmp_path):
    diverged = lines()
    diverged[0]["order"] = {"residual": [math.nan] * 5, "violating_share": math.nan}
    found = drawn(figures.order_parameters, diverged, folder=tmp_path)
    assert {"Residual of self-consistency", "Violating pairs of fields (%)"} <= set(found)


def test_a_comparison_labels_every_curve_and_level(tmp_path):
    curves = {
        "mean field": [(1, 10.0), (2, 50.0)],
        "pairs": [(1, 9.0), (2, 49.9)],
        "p$a$": [(1, 3)],
    }
    levels = {"untrained": 3.0, "published": 50.1}
    found = drawn(figures.comparison, curves, levels, folder=tmp_path, ylabel="MAP@R (%)")
    # Dollars are dollars: nothing that was given is read as a formula.
    assert {*curves, *levels, "MAP@R (%)"} <= set(found)


@pytest.mark.parametrize(("curves", "got"), [({}, "no curve"), ({"a": []}, "none for 'a'")])
def test_a_comparison_needs_curves_with_points(tmp_path, curves, got):
    with pytest.raises(ValueError, match=f"at least one point .*got {got}"):
        figures.comparison(curves, {"level": 1.0}, tmp_path / "a.png", ylabel="y")


@pytest.mark.parametrize("seed", range(10))
def test_labels_do_not_overlap_and_keep_their_order(seed):
    generator = torch.Generator().manual_seed(seed)
    wanted = (torch.rand(7, generator=generator) ** 3).tolist()
    heights = [0.05, 0.1, 0.05, 0.15, 0.05, 0.05, 0.1]
    placed = drawing.spread_out(wanted, heights)
    for i, j in itertools.permutations(range(7), 2):
        if wanted[i] < wanted[j]:
            assert placed[j] - placed[i] >= (heights[i] + heights[j]) / 2 - 1e-3
    for at, height in zip(placed, heights, strict=True):
        assert height / 2 - 1e-9 <= at <= 1 - height / 2 + 1e-9


def test_labels_with_room_stand_where_they_belong():
    assert drawing.spread_out([0.2, 0.9, 0.5], [0.1, 0.1, 0.1]) == [0.2, 0.9, 0.5]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_figure_has_the_same_bytes(tmp_path, suffix):
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for path in (first, second):
        figures.learning_curves(lines(), path, best_epoch=2)
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()
    assert b"CreationDate" not in first.read_bytes()


def test_a_pdf_has_the_same_bytes_in_another_process(tmp_path):
    code = "import sys; from pathlib import Path; from weiss import plots; "
    code += "plots.heat_map([1], [2, 3], [[1.0], [None]], Path(sys.argv[1]), "
    code += "xlabel='x', ylabel='y', label='é ↓')"
    here, there = tmp_path / "here.pdf", tmp_path / "there.pdf"
    names = {"xlabel": "x", "ylabel": "y", "label": "é ↓"}
    figures.heat_map([1], [2, 3], [[1.0], [None]], here, **names)
    # Python orders sets of words by chance, unless told how.
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(there)], check=True, env=environment)
    assert here.read_bytes() == there.read_bytes()


def test_the_suffix_says_what_is_written(tmp_path):
    for name, start in (
        ("a.png", b"\x89PNG"),
        ("a.PNG", b"\x89PNG"),
        ("a.svg", b"<?xml"),
        ("a.pdf", b"%PDF"),
    ):
        figures.order_parameters(lines(), tmp_path / "new" / name)
        assert (tmp_path / "new" / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match="must end in .png, .svg or .pdf; got .*a.jpg"):
        figures.order_parameters(lines(), tmp_path / "a.jpg")


def test_circles_and_sheets_are_drawn_as_before(tmp_path):
    labels = torch.tensor([0, 1, 0])
    runs = {"a loss": [(0, torch.randn(3, 2), torch.randn(2, 2))]}
    figures.settling(runs, labels, tmp_path / "circle.png")
    pixels = torch.randint(256, (12, 8, 8, 1), dtype=torch.uint8).numpy()
    table = from_arrays(pixels, [i % 4 for i in range(12)])
    draw_sheet(table, tmp_path / "sheet.svg")
    assert (tmp_path / "circle.png").stat().st_size
    assert texts(tmp_path / "sheet.svg")


NAMES = ["ProxyAnchor", "MFCont", "MFCWMS", "Contrastive (PML)", "MS+Miner", "NormSoftmax"]
FIGURES = {
    "averaged_curves": lambda path: figures.averaged_curves(
        {name: [lines(), lines(6)] for name in NAMES}, path, levels={"untrained": 3.0}
    ),
    "averaged_order": lambda path: figures.averaged_order(
        {name: [lines(), lines(6)] for name in NAMES}, path
    ),
    "box_plots": lambda path: figures.box_plots(
        {name: [25.0, 25.1, 25.1, 26.0] for name in NAMES},
        path,
        ylabel="MAP@R (%)",
        levels={"untrained": 24.0},
        published={"MFCont": (25.3, 0.3)},
    ),
    "dependence": lambda path: figures.dependence(
        {name: [Point(x, 25.0, 24.5, 25.5) for x in (0, 0.01, 1)] for name in NAMES},
        path,
        xlabel="weight",
        ylabel="MAP@R (%)",
        log_x=True,
        published={"MFCont": [Point(0, 25.3), Point(1, 25.2)]},
    ),
    "heat_map": lambda path: figures.heat_map(
        [1, 2], [0.1, 0.2], [[1.0, None], [2.0, 3.0]], path, xlabel="x", ylabel="y", label="z"
    ),
    "costs": lambda path: figures.costs(
        {name: [Point(100, 1.0, 0.9, 1.2), Point(10_000, 50.0)] for name in NAMES},
        {name: [Point(100, 3.0)] for name in NAMES},
        path,
        xlabel="classes",
    ),
    "breakdown": lambda path: figures.breakdown(
        {"a": [(0.0, 0.0), (0.5, 0.1)], "b": [(0.0, 0.0), (0.5, 90.0)]},
        path,
        networks={"cub": (0.3, 1.0), "cars": (0.31, 1.1)},
        xlabel="spread",
        ylabel="excess",
    ),
    "search_history": lambda path: figures.search_history(
        {name: [0.2, None, 0.3, 0.25] for name in NAMES[:4]}, path
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_the_same_each_time_needs_no_fonts_and_fits_a_page(tmp_path, name):
    for suffix in ("svg", "pdf"):
        first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
        for path in (first, second):
            FIGURES[name](path)
        assert first.read_bytes() == second.read_bytes()
    written = (tmp_path / "a.svg").read_text()
    assert "<text" not in written
    width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', written, re.DOTALL).group(1))
    assert 3.4 <= width / 72 <= 7.1


def marks_of(path, colour):
    """Where the markers of a colour stand in an SVG, from the left, in its own units."""
    # A band of that colour stands at x = 0; a marker has an edge, which a band has not.
    pattern = r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="([^"]*)"'
    found = re.findall(pattern, path.read_text())
    return sorted(
        (float(x), float(y)) for x, y, look in found if f"stroke: {colour}" in look and float(x)
    )


def test_averaged_curves_are_means_over_the_runs_that_reached_an_epoch(tmp_path):
    def run(*values):
        return [{"epoch": at, "evaluation": {"map_at_r": v}} for at, v in enumerate(values, 1)]

    path = tmp_path / "a.svg"
    figures.averaged_curves({"a": [run(0.1, 0.2), run(0.3, 0.4, 0.5)]}, path)
    marks = marks_of(path, "#0072b2")
    heights = [y for _, y in marks]
    # 0.2, 0.3 and, of one run, 0.5: the second step is twice the first.
    assert len(marks) == 3
    assert heights[1] - heights[2] == pytest.approx(2 * (heights[0] - heights[1]), rel=1e-3)


def test_titles_without_an_evaluation_are_left_out_of_averaged_curves(tmp_path):
    runs = {"trained": [lines()], "not yet": [lines(evaluated=False)], "nothing": []}
    found = drawn(figures.averaged_curves, runs, folder=tmp_path)
    assert "trained" in found
    assert not {"not yet", "nothing"} & set(found)
    with pytest.raises(ValueError, match="at least one evaluation with 'map_at_r'; got 1 titles"):
        figures.averaged_curves({"not yet": [lines(evaluated=False)]}, tmp_path / "a.svg")


def order_run(lengths=(), residuals=(), shares=()):
    """The lines of a run with these medians over classes and these shares of pairs of fields."""
    epochs = range(1, 1 + max(map(len, (lengths, residuals, shares))))
    made = [{"epoch": epoch, "order": {}} for epoch in epochs]
    for key, medians in (("class_mean_length", lengths), ("residual", residuals)):
        for line, median in zip(made, medians, strict=False):
            line["order"][key] = [0.0, 0.001, median, 7.0, 8.0]
    for line, share in zip(made, shares, strict=False):
        line["order"]["violating_share"] = share
    return made


def test_order_is_the_median_over_classes_averaged_over_the_seeds_that_reached_an_epoch():
    seeds = [
        order_run([0.2, 0.4], [0.6, 0.4], [0.1, 0.0]),
        order_run([0.4, 0.5, 0.9], [0.8, 0.2, 0.1], [0.3, 0.02, 0.01]),
    ]
    found = figures.order_averages({"MFCWMS": seeds})
    length, residual, share = (found[key]["MFCWMS"] for key in figures.ORDER)
    assert length.epochs == residual.epochs == share.epochs == [1, 2, 3]
    assert length.means == pytest.approx([0.3, 0.45, 0.9])
    assert residual.means == pytest.approx([0.7, 0.3, 0.1])
    assert share.means == pytest.approx([20.0, 1.0, 1.0])
    assert (length.lows, length.highs) == ([0.2, 0.4, 0.9], [0.4, 0.5, 0.9])
    assert [each.num_runs for each in (length, residual, share)] == [2, 2, 2]


def test_runs_without_order_parameters_count_for_nothing():
    absent = [{"epoch": 1}, {"epoch": 2, "order": None}, {"epoch": 3, "order": {}}]
    lost = order_run([math.nan], [math.nan])
    runs = {
        "half": [absent, order_run([0.5], [0.25]), lost, []],
        "pairs": [order_run([0.75, 0.8])],
        "nothing": [absent, lost],
        "not begun": [],
    }
    found = figures.order_averages(runs)
    assert {key: list(curves) for key, curves in found.items()} == {
        "class_mean_length": ["half", "pairs"],
        "residual": ["half"],
    }
    assert found["class_mean_length"]["half"].means == [0.5]
    assert found["class_mean_length"]["half"].num_runs == 1
    assert found["class_mean_length"]["pairs"].means == [0.75, 0.8]
    assert figures.order_averages({"nothing": [absent], "pairs": []}) == {}


def test_order_of_several_runs_labels_each_line_and_leaves_out_panels_without_values(tmp_path):
    runs = {"MS": [order_run([0.5, 0.6])], "ProxyAnchor": [order_run([0.7], [0.9])], "none": [[]]}
    found = drawn(figures.averaged_order, runs, folder=tmp_path, title="Order")
    assert {"Order", "Length of class means", "Residual of self-consistency", "epoch"} <= set(found)
    assert (found.count("MS"), found.count("ProxyAnchor")) == (1, 2)
    assert not {"Violating pairs of fields (%)", "none"} & set(found)
    found = drawn(figures.averaged_order, {"MS": runs["MS"]}, folder=tmp_path)
    assert "Residual of self-consistency" not in found
    with pytest.raises(ValueError, match="an entry 'order' that has values; got 2 titles without"):
        figures.averaged_order({"a": [[{"epoch": 1}]], "b": []}, tmp_path / "a.svg")


def test_labels_of_a_full_panel_do_not_touch_though_another_is_nearly_empty(tmp_path, monkeypatch):
    from matplotlib.text import Text

    from weiss.figures import averages

    figures = []
    monkeypatch.setattr(averages, "write", lambda figure, *_, **__: figures.append(figure))
    long = "MS, a rather long name of a setting {}"
    runs = {long.format(at): [order_run([0.5, 0.6 + at / 1000])] for at in range(7)}
    figures.averaged_order({**runs, "MFCWMS": [order_run([0.5], [0.1])]}, tmp_path / "a.svg")
    (figure,) = figures
    figure.canvas.draw()
    for axis in figure.axes:
        boxes = [Text.get_window_extent(text) for text in axis.texts]  # without their leaders
        assert len(boxes) >= 1
        for one, other in itertools.combinations(boxes, 2):
            assert min(one.y1, other.y1) - max(one.y0, other.y0) < 1.0  # of a dot


def test_a_title_looks_the_same_among_learning_curves_and_order_parameters(tmp_path):
    evaluated = [{"epoch": 1, "evaluation": {"map_at_r": 0.5}}]
    both = [{**evaluated[0], **order_run([0.5], [0.1])[0]}]
    runs = {"no order": [evaluated], "not evaluated": [order_run([0.5])], "both": [both]}
    curves, order = tmp_path / "curves.svg", tmp_path / "order.svg"
    figures.averaged_curves(runs, curves)
    figures.averaged_order(runs, order)
    blue, orange, green = (colour.lower() for colour in figures.COLOURS[:3])
    assert [len(marks_of(curves, colour)) for colour in (blue, orange, green)] == [1, 0, 1]
    assert [len(marks_of(order, colour)) for colour in (blue, orange, green)] == [0, 1, 2]


def test_residuals_over_decades_are_logarithmic_in_order_of_several_runs_too(tmp_path):
    runs = {"a": [order_run(residuals=[1.0, 0.1, 0.01])]}
    assert any("10^{-1}" in text for text in drawn(figures.averaged_order, runs, folder=tmp_path))
    runs["b"] = [order_run(residuals=[0.0])]
    assert not any("10^" in text for text in drawn(figures.averaged_order, runs, folder=tmp_path))


def test_a_share_of_next_to_nothing_does_not_fill_its_panel(tmp_path):
    runs = {"a": [order_run(shares=[0.0, 0.00001])]}
    found = drawn(figures.averaged_order, runs, folder=tmp_path)
    assert {"0.0", "1.0"} <= set(found)


def test_a_level_near_the_data_is_drawn_and_one_far_away_is_told(tmp_path):
    values = {"a": [25.0, 26.0]}
    near = drawn(figures.box_plots, values, folder=tmp_path, ylabel="y", levels={"near": 23.0})
    assert "near" in near
    far = drawn(
        figures.box_plots, values, folder=tmp_path, ylabel="y", levels={"low": 2.0, "high": 80.0}
    )
    assert {"↓ low: 2.0", "↑ high: 80.0"} <= set(far)


def test_boxes_need_one_value_and_leave_out_titles_without(tmp_path):
    values = {"one": [25.0], "none": [], "no number": [math.nan], "equal": [24.0, 24.0]}
    found = drawn(figures.box_plots, values, folder=tmp_path, ylabel="y")
    assert {"one", "equal"} <= set(found)
    assert not {"none", "no number", "published"} & set(found)
    with pytest.raises(ValueError, match="at least one number"):
        figures.box_plots({"a": []}, tmp_path / "a.svg", ylabel="y")


def test_a_single_run_has_neither_box_nor_interval(tmp_path):
    found = drawn(figures.box_plots, {"one": [25.0]}, folder=tmp_path, ylabel="y")
    assert "one run" in found
    assert not {"mean, 95 % interval", "median, quartiles"} & set(found)


def test_the_interval_of_two_runs_does_not_flatten_the_others(tmp_path):
    def highest(values):
        found = drawn(figures.box_plots, values, folder=tmp_path, ylabel="y")
        return max(float(text) for text in found if text.replace(".", "").isdigit())

    two = {"two": [25.0, 25.8]}  # whose mean lies in 20.3 to 30.5
    assert highest(two) > 29
    assert highest({"three": [25.0, 25.5, 25.2], **two}) < 27


def test_panels_of_boxes_share_their_titles(tmp_path):
    panels = {"above": Boxes({"a": [1.0], "b": [2.0]}), "below": Boxes({"b": [3.0]})}
    found = drawn(figures.box_panels, panels, folder=tmp_path, ylabel="y")
    assert {"above", "below"} <= set(found)
    assert found.count("a") == found.count("b") == 1


@pytest.mark.parametrize("log_x", [True, False])
def test_ticks_stand_at_what_was_run_and_nowhere_else(tmp_path, log_x):
    for places in ([0, 0.01, 0.1, 1, 100], [30, 300, 700], [128]):
        points = [Point(place, 1.0 + at) for at, place in enumerate(places)]
        names = {"xlabel": "weight", "ylabel": "y", "log_x": log_x}
        found = drawn(figures.dependence, {"a": points}, folder=tmp_path, **names)
        written = (tmp_path / "figure.svg").read_text()
        assert len(re.findall(r'id="xtick_\d+"', written)) == len(places)
        assert f"{places[-1]:g}" in found
        if log_x:
            assert {f"{place:g}" for place in places} <= set(found)


def test_numbers_at_ticks_give_way_to_the_larger_ones(tmp_path):
    points = [Point(2**power, power) for power in range(3, 11)]
    found = drawn(figures.dependence, {"a": points}, folder=tmp_path, xlabel="x", ylabel="y")
    assert {"256", "512", "1024"} <= set(found)
    assert "16" not in found  # on a linear axis it stands on 32


def test_published_lines_alone_say_that_they_are(tmp_path):
    names = {"xlabel": "x", "ylabel": "y"}
    given = {"a": [Point(1, 2.0)]}
    assert "a (published)" in drawn(
        figures.dependence, {"a": []}, folder=tmp_path, published=given, **names
    )
    both = drawn(figures.dependence, given, folder=tmp_path, published=given, **names)
    assert {"a", "published", "measured here"} <= set(both)
    with pytest.raises(ValueError, match="at least one point; got 1 titles"):
        figures.dependence({"a": [Point(1, math.nan)]}, tmp_path / "a.svg", **names)


def test_an_interval_that_misses_its_mean_or_half_of_it_is_no_error(tmp_path):
    points = [Point(1, 5.0, 6.0, 7.0), Point(2, 5.0, None, 6.0), Point(3, 5.0, math.nan, math.inf)]
    assert "a" in drawn(figures.dependence, {"a": points}, folder=tmp_path, xlabel="x", ylabel="y")


def test_a_heat_map_writes_its_numbers_and_hatches_what_is_absent(tmp_path):
    names = {"xlabel": "beta", "ylabel": "delta", "label": "MAP@R (%)"}
    values = [[20.0, 21.5], [None, math.nan]]
    found = drawn(figures.heat_map, [10, 20], [0.1, 0.2], values, folder=tmp_path, **names)
    assert {"20.0", "21.5", "10", "0.2", *names.values()} <= set(found)
    assert (tmp_path / "figure.svg").read_text().count("url(#h") == 2
    equal = drawn(figures.heat_map, [10, 20], [0.1], [[20.0, 20.0]], folder=tmp_path, **names)
    assert equal.count("20.0") == 2


@pytest.mark.parametrize("values", [[[1.0]], [[1.0, 2.0], [3.0]], [[1.0, 2.0]] * 3])
def test_a_heat_map_refuses_another_shape(tmp_path, values):
    names = {"xlabel": "x", "ylabel": "y", "label": "z"}
    with pytest.raises(ValueError, match="must be 2 rows .* of 2"):
        figures.heat_map([1, 2], [1, 2], values, tmp_path / "a.svg", **names)
    with pytest.raises(ValueError, match="at least one number; all are absent"):
        figures.heat_map([1, 2], [1], [[None, None]], tmp_path / "a.svg", **names)


@pytest.mark.parametrize("grey", [0.0, 0.2, 0.4, 0.45, 0.5, 0.6, 1.0])
def test_numbers_in_cells_contrast_with_them(grey):
    from weiss.figures.heat_maps import _readable_on

    # Contrast as the guidelines define it: (lighter + 0.05) / (darker + 0.05).
    luminance = grey / 12.92 if grey <= 0.04 else ((grey + 0.055) / 1.055) ** 2.4
    contrast = {"white": 1.05 / (luminance + 0.05), "black": (luminance + 0.05) / 0.05}
    assert contrast[_readable_on((grey, grey, grey))] >= 4.5


def test_costs_leave_out_a_panel_without_values_and_what_is_not_positive(tmp_path):
    points = {"a": [Point(100, 1.0), Point(10_000, 2.0, -1.0, 3.0), Point(1000, 0.0)]}
    found = drawn(figures.costs, points, {"a": []}, folder=tmp_path, xlabel="classes")
    assert {"time of a step (ms)", "100", "10k"} <= set(found)
    assert not {"peak memory of a step (MB)", "1000"} & set(found)
    with pytest.raises(ValueError, match="at least one point"):
        figures.costs({}, {"a": [Point(1, 0.0)]}, tmp_path / "a.svg", xlabel="x")


def test_losses_of_different_size_share_a_scale_on_which_both_show(tmp_path):
    names = {"xlabel": "spread", "ylabel": "excess"}
    curves = {"small": [(0.0, 0.0), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 50.0)]}
    assert any(
        "10^{-1}" in text for text in drawn(figures.breakdown, curves, folder=tmp_path, **names)
    )
    alike = {"small": [(0.0, -0.1), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 0.2)]}
    found = drawn(figures.breakdown, alike, folder=tmp_path, networks={"cub": (0.5, 0.1)}, **names)
    assert {"small", "large", "cub"} <= set(found)
    of_a_curve = {"small, trained": (0.5, 0.1), "tiny, trained": (0.5, 0.2)}
    found = drawn(figures.breakdown, alike, folder=tmp_path, networks=of_a_curve, **names)
    assert {"small", "trained", "tiny, trained"} <= set(found)
    assert not any("10^" in text for text in found)


def test_a_breakdown_of_networks_alone_or_all_zero_is_a_figure_too(tmp_path):
    names = {"xlabel": "spread", "ylabel": "excess"}
    point = {"networks": {"cub": (0.5, 0.1)}}
    assert "cub" in drawn(figures.breakdown, {}, folder=tmp_path, **point, **names)
    below = {"a": [(0, 0), (1, -1)], "b": [(1, -90)]}
    assert "b" in drawn(figures.breakdown, below, folder=tmp_path, **names)
    assert "a" in drawn(figures.breakdown, {"a": [(0, 0), (1, 0)]}, folder=tmp_path, **names)
    with pytest.raises(ValueError, match="at least one point"):
        figures.breakdown({}, tmp_path / "a.svg", **names)


def test_a_search_shows_trials_that_failed_only_where_some_did(tmp_path):
    found = drawn(figures.search_history, {"a": [0.2, None], "b": [None]}, folder=tmp_path)
    assert {"a", "b", "trial", "best so far", "failed"} <= set(found)
    assert "failed" not in drawn(figures.search_history, {"a": [0.2]}, folder=tmp_path)
    with pytest.raises(ValueError, match="at least one trial; got 1"):
        figures.search_history({"a": []}, tmp_path / "a.svg")


def test_a_network_far_from_every_curve_is_named_at_the_edge(tmp_path):
    from weiss.figures import breakdown

    curves = {"MFCWMS": [(0.0, 0.0), (0.5, 0.06)]}
    words = {"xlabel": "spread", "ylabel": "excess"}
    near, far = tmp_path / "near.svg", tmp_path / "far.svg"
    breakdown(curves, near, networks={"MFCWMS, trained": (0.1, 0.02)}, **words)
    breakdown(curves, far, networks={"MFCWMS, trained": (0.1, -0.7)}, **words)
    assert "trained" in texts(near)
    assert any(text.startswith("↓ MFCWMS, trained:") for text in texts(far))
    assert "\N{MINUS SIGN}0.6" not in texts(far)  # the scale is the curves'
