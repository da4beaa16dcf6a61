"""Figures show what was given, leave out what is absent, and have the same bytes each time."""

import inspect
import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weiss import figures
from weiss.data import from_arrays
from weiss.figures import Boxes, Point, dependences, drawing


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


def texts(figure):
    """All texts of a figure, line by line; ticks where they are in view."""
    found = [figure.get_suptitle()]
    legends = list(figure.legends)
    for axis in figure.axes:
        found += [text.get_text() for text in axis.texts]
        found += [axis.get_title(loc) for loc in ("left", "center")]
        for along in (axis.xaxis, axis.yaxis) if axis.axison else ():
            found.append(along.get_label().get_text())
            low, high = sorted(along.get_view_interval())
            ticks = zip(along.get_majorticklocs(), along.get_majorticklabels(), strict=False)
            found += [
                label.get_text() for at, label in ticks if low <= at <= high and label.get_visible()
            ]
    found += [text.get_text() for legend in legends for text in legend.get_texts()]
    return [line for text in found for line in text.split("\n") if line]


@pytest.fixture
def figure_of(monkeypatch, tmp_path):
    """Draw without rendering, which takes most of the time; return the figure."""
    from matplotlib.figure import Figure

    made = []

    def keep(figure, path, **_):
        made.append(figure)
        Path(path).touch()

    def draw(function, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", keep)
            function(*args, tmp_path / "figure.svg", **options)
        return made.pop()

    return draw


@pytest.fixture
def drawn(figure_of):
    """The texts of a figure."""
    return lambda *args, **options: texts(figure_of(*args, **options))


def test_learning_curves_show_loss_retrieval_and_rates_and_mark_the_best_epoch(drawn):
    found = drawn(figures.learning_curves, lines(), best_epoch=4, title="A run")
    assert {"A run", "Training loss", "Retrieval (%)", "Learning rate"} <= set(found)
    assert {"MAP@R", "RP", "P@1", "network", "fields", "warm-up"} <= set(found)
    assert "best: epoch 4" in found
    assert "MAP@R 40.0 %" in found


def test_a_panel_without_values_is_left_out(drawn):
    found = drawn(figures.learning_curves, lines(evaluated=False))
    assert "Training loss" in found
    assert not {"Retrieval (%)", "MAP@R"} & set(found)


def test_warm_up_is_shaded_where_there_was_one(drawn):
    trained = [{**line, "phase": "training"} for line in lines()]
    assert "warm-up" not in drawn(figures.learning_curves, trained)
    told = drawn(figures.learning_curves, trained, warmup_epochs=2)
    assert "warm-up" in told


def test_a_learning_rate_of_zero_has_no_place_on_a_logarithmic_axis(drawn):
    frozen = [{**line, "lr": {"network": 0.0, "fields": 0.2}} for line in lines()]
    found = drawn(figures.learning_curves, frozen)
    assert "fields" in found
    assert "network" not in found


def test_a_loss_that_is_no_number_is_a_gap(drawn):
    diverged = lines()
    diverged[-1]["loss"] = math.nan
    diverged[-2]["loss"] = None
    assert "Training loss" in drawn(figures.learning_curves, diverged)


def test_one_epoch_is_a_figure_too(drawn):
    assert "Training loss" in drawn(figures.learning_curves, lines(1))
    assert "epoch" in drawn(figures.order_parameters, lines(1))


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_best_epoch_must_have_been_evaluated(tmp_path, evaluated):
    known = "2, 4" if evaluated else "none"
    message = f"best_epoch must be an epoch that was evaluated; got 3, evaluated: {known}"
    with pytest.raises(ValueError, match=message):
        figures.learning_curves(lines(evaluated=evaluated), tmp_path / "a.png", best_epoch=3)
    assert not list(tmp_path.iterdir())


def test_order_parameters_have_three_panels_and_say_what_the_bands_are(drawn):
    found = drawn(figures.order_parameters, lines(), title="Order")
    assert {"Order", "Length of class means", "Residual of self-consistency"} <= set(found)
    assert "Violating pairs of fields (%)" in found
    assert {"median of the classes", "25 to 75 %", "5 to 95 %"} <= set(found)


def test_losses_without_fields_have_one_order_parameter(drawn):
    found = drawn(figures.order_parameters, lines(order=["class_mean_length"]))
    assert "Length of class means" in found
    assert not {"Residual of self-consistency", "Violating pairs of fields (%)"} & set(found)
    found = drawn(figures.order_parameters, lines(order=["violating_share"]))
    assert "Violating pairs of fields (%)" in found
    assert "median of the classes" not in found


def test_a_residual_over_decades_is_logarithmic_and_one_with_zeros_is_not(drawn):
    decades = drawn(figures.order_parameters, lines(order=["residual"]))
    assert any("10^{-3}" in text for text in decades)
    zeros = lines(order=["residual"])
    zeros[0]["order"]["residual"][0] = 0.0
    found = drawn(figures.order_parameters, zeros)
    assert not any("10^{-3}" in text for text in found)


def test_nothing_violated_throughout_is_a_line_at_the_bottom(drawn):
    settled = [{**line, "order": {"violating_share": 0.0}} for line in lines()]
    assert "0.0" in drawn(figures.order_parameters, settled)


def test_order_parameters_that_are_no_numbers_are_gaps(drawn):
    diverged = lines()
    diverged[0]["order"] = {"residual": [math.nan] * 5, "violating_share": math.nan}
    found = drawn(figures.order_parameters, diverged)
    assert {"Residual of self-consistency", "Violating pairs of fields (%)"} <= set(found)


def test_a_comparison_labels_every_curve_and_level(figure_of):
    curves = {
        "mean field": [(1, 10.0), (2, 50.0)],
        "pairs": [(1, 9.0), (2, 49.9)],
        "p$a$": [(1, 3)],
    }
    levels = {"untrained": 3.0, "published": 50.1}
    figure = figure_of(figures.comparison, curves, levels, ylabel="MAP@R (%)")
    assert {*curves, *levels, "MAP@R (%)"} <= set(texts(figure))
    # Dollars are dollars: nothing that was given is read as a formula.
    assert not any(text.get_parse_math() for text in figure.axes[0].texts)


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


def small(path):
    names = {"xlabel": "x", "ylabel": "y", "label": "é ↓"}
    figures.heat_panels({"": [[1.0], [None]]}, [1], [2, 3], path, **names)


def test_a_figure_has_the_same_bytes_in_another_process_and_no_date(tmp_path):
    code = "import sys; from pathlib import Path; from weiss import figures\n"
    code += inspect.getsource(small) + "\n[small(Path(path)) for path in sys.argv[1:]]"
    kinds = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    there = [str(tmp_path / f"there.{kind}") for kind in kinds]
    # Python orders sets of words by chance, unless told how.
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, *there], check=True, env=environment)
    for kind, start in kinds.items():
        path = tmp_path / "new" / f"here.{kind}"
        small(path)
        written = path.read_bytes()
        assert written.startswith(start)
        assert written == (tmp_path / f"there.{kind}").read_bytes()
        assert b"<dc:date>" not in written
        assert b"CreationDate" not in written


def test_the_suffix_says_what_is_written(tmp_path):
    small(tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="must end in .png, .svg or .pdf; got .*a.jpg"):
        small(tmp_path / "a.jpg")


def test_circles_and_sheets_are_drawn(drawn):
    labels = torch.tensor([0, 1, 0])
    runs = {"a loss": [(0, torch.randn(3, 2), torch.randn(2, 2))]}
    assert {"a loss", "step 0"} <= set(drawn(figures.settling, runs, labels))
    pixels = torch.randint(256, (12, 8, 8, 1), dtype=torch.uint8).numpy()
    table = from_arrays(pixels, [i % 4 for i in range(12)])
    assert set(table.class_names) <= set(drawn(figures.draw_sheet, table))


NAMES = ["ProxyAnchor", "MFCont", "Contrastive (PML)"]
FIGURES = {
    "averaged_curves": lambda path: figures.averaged_curves(
        {name: [lines(), lines(6)] for name in NAMES}, path, levels={"untrained": 3.0}
    ),
    "averaged_order": lambda path: figures.averaged_order(
        {name: [lines(), lines(6)] for name in NAMES}, path
    ),
    "box_panels": lambda path: figures.box_panels(
        {
            "": Boxes(
                {name: [25.0, 25.1, 25.1, 26.0] for name in NAMES},
                {"untrained": 24.0},
                {"MFCont": (25.3, 0.3)},
            )
        },
        path,
        ylabel="MAP@R (%)",
    ),
    "dependence": lambda path: figures.dependence(
        {name: [Point(x, 25.0, 24.5, 25.5) for x in (0, 0.01, 1)] for name in NAMES},
        path,
        xlabel="weight",
        ylabel="MAP@R (%)",
        log_x=True,
        published={"MFCont": [Point(0, 25.3), Point(1, 25.2)]},
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
        {name: [0.2, None, 0.3, 0.25] for name in NAMES}, path
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_the_same_each_time_needs_no_fonts_and_fits_a_page(tmp_path, name):
    for path in (tmp_path / "a.svg", tmp_path / "b.svg"):
        FIGURES[name](path)
    written = (tmp_path / "a.svg").read_text()
    assert written == (tmp_path / "b.svg").read_text()
    assert "<text" not in written
    width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', written, re.DOTALL).group(1))
    assert 3.4 <= width / 72 <= 7.1


def heights_of(figure, colour):
    """The heights of all lines of a colour, panel by panel."""
    drawn = [line for axis in figure.axes for line in axis.get_lines()]
    return [y for line in drawn if line.get_color() == colour for y in line.get_ydata()]


def test_averaged_curves_are_means_over_the_runs_that_reached_an_epoch(figure_of):
    def run(*values):
        return [{"epoch": at, "evaluation": {"map_at_r": v}} for at, v in enumerate(values, 1)]

    figure = figure_of(figures.averaged_curves, {"a": [run(0.1, 0.2), run(0.3, 0.4, 0.5)]})
    assert heights_of(figure, figures.COLOURS[0]) == pytest.approx([20, 30, 50])


def test_titles_without_an_evaluation_are_left_out_of_averaged_curves(drawn):
    runs = {"trained": [lines()], "not yet": [lines(evaluated=False)], "nothing": []}
    found = drawn(figures.averaged_curves, runs)
    assert "trained" in found
    assert not {"not yet", "nothing"} & set(found)


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


def test_order_of_several_runs_labels_each_line_and_leaves_out_panels_without_values(drawn):
    runs = {"MS": [order_run([0.5, 0.6])], "ProxyAnchor": [order_run([0.7], [0.9])], "none": [[]]}
    found = drawn(figures.averaged_order, runs)
    assert {"Length of class means", "Residual of self-consistency", "epoch"} <= set(found)
    assert (found.count("MS"), found.count("ProxyAnchor")) == (1, 2)
    assert not {"Violating pairs of fields (%)", "none"} & set(found)
    found = drawn(figures.averaged_order, {"MS": runs["MS"]})
    assert "Residual of self-consistency" not in found


def test_labels_of_a_full_panel_do_not_touch_though_another_is_nearly_empty(figure_of):
    from matplotlib.text import Text

    long = "MS, a rather long name of a setting {}"
    runs = {long.format(at): [order_run([0.5, 0.6 + at / 1000])] for at in range(7)}
    runs["MFCWMS"] = [order_run([0.5], [0.1])]
    figure = figure_of(figures.averaged_order, runs)
    figure.canvas.draw()
    for axis in figure.axes:
        boxes = [Text.get_window_extent(text) for text in axis.texts]  # without their leaders
        assert len(boxes) >= 1
        for one, other in itertools.combinations(boxes, 2):
            assert min(one.y1, other.y1) - max(one.y0, other.y0) < 1.0  # of a dot


def test_a_title_looks_the_same_among_learning_curves_and_order_parameters(figure_of):
    evaluated = [{"epoch": 1, "evaluation": {"map_at_r": 0.5}}]
    both = [{**evaluated[0], **order_run([0.5], [0.1])[0]}]
    runs = {"no order": [evaluated], "not evaluated": [order_run([0.5])], "both": [both]}
    for draw, numbers in (
        (figures.averaged_curves, [1, 0, 1]),
        (figures.averaged_order, [0, 1, 2]),
    ):
        figure = figure_of(draw, runs)
        found = [len(heights_of(figure, colour)) for colour in figures.COLOURS[:3]]
        assert found == numbers


def test_residuals_over_decades_are_logarithmic_in_order_of_several_runs_too(drawn):
    runs = {"a": [order_run(residuals=[1.0, 0.1, 0.01])]}
    assert any("10^{-1}" in text for text in drawn(figures.averaged_order, runs))
    runs["b"] = [order_run(residuals=[0.0])]
    assert not any("10^" in text for text in drawn(figures.averaged_order, runs))


def test_a_share_of_next_to_nothing_does_not_fill_its_panel(drawn):
    runs = {"a": [order_run(shares=[0.0, 0.00001])]}
    found = drawn(figures.averaged_order, runs)
    assert {"0.0", "1.0"} <= set(found)


@pytest.fixture
def boxes(drawn):
    """The texts of one panel of boxes."""
    return lambda *given: drawn(figures.box_panels, {"": Boxes(*given)}, ylabel="y")


def test_a_level_near_the_data_is_drawn_and_one_far_away_is_told(boxes):
    values = {"a": [25.0, 26.0]}
    assert "near" in boxes(values, {"near": 23.0})
    far = boxes(values, {"low": 2.0, "high": 80.0})
    assert {"↓ low: 2.0", "↑ high: 80.0"} <= set(far)


def test_boxes_leave_out_titles_without_values(boxes):
    found = boxes({"one": [25.0], "none": [], "no number": [math.nan], "equal": [24.0, 24.0]})
    assert {"one", "equal"} <= set(found)
    assert not {"none", "no number", "published"} & set(found)


def test_a_single_run_has_neither_box_nor_interval(boxes):
    found = boxes({"one": [25.0]})
    assert "one run" in found
    assert not {"mean, 95 % interval", "median, quartiles"} & set(found)


def test_the_interval_of_two_runs_does_not_flatten_the_others(boxes):
    def highest(values):
        return max(float(text) for text in boxes(values) if text.replace(".", "").isdigit())

    two = {"two": [25.0, 25.8]}  # whose mean lies in 20.3 to 30.5
    assert highest(two) > 29
    assert highest({"three": [25.0, 25.5, 25.2], **two}) < 27


def test_panels_of_boxes_share_their_titles(drawn):
    panels = {"above": Boxes({"a": [1.0], "b": [2.0]}), "below": Boxes({"b": [3.0]})}
    found = drawn(figures.box_panels, panels, ylabel="y")
    assert {"above", "below"} <= set(found)
    assert found.count("a") == found.count("b") == 1


@pytest.mark.parametrize("log_x", [True, False])
def test_ticks_stand_at_what_was_run_and_nowhere_else(figure_of, log_x):
    for places in ([0, 0.01, 0.1, 1, 100], [30, 300, 700], [128]):
        points = [Point(place, 1.0 + at) for at, place in enumerate(places)]
        figure = figure_of(figures.dependence, {"a": points}, log_x=log_x, **XY)
        assert figure.axes[0].get_xticks().tolist() == sorted(places)
        assert not len(figure.axes[0].get_xticks(minor=True))
        found = texts(figure)
        assert f"{places[-1]:g}" in found
        if log_x:
            assert {f"{place:g}" for place in places} <= set(found)


def test_numbers_at_ticks_give_way_to_the_larger_ones(drawn):
    points = [Point(2**power, power) for power in range(3, 11)]
    found = drawn(figures.dependence, {"a": points}, **XY)
    assert {"256", "512", "1024"} <= set(found)
    assert "16" not in found  # on a linear axis it stands on 32


def test_published_lines_alone_say_that_they_are(drawn):
    given = {"a": [Point(1, 2.0)]}
    assert "a (published)" in drawn(figures.dependence, {"a": []}, published=given, **XY)
    both = drawn(figures.dependence, given, published=given, **XY)
    assert {"a", "published", "measured here"} <= set(both)


def test_an_interval_that_misses_its_mean_or_half_of_it_is_no_error(drawn):
    points = [Point(1, 5.0, 6.0, 7.0), Point(2, 5.0, None, 6.0), Point(3, 5.0, math.nan, math.inf)]
    assert "a" in drawn(figures.dependence, {"a": points}, **XY)


XY = {"xlabel": "x", "ylabel": "y"}
HEAT = {"xlabel": "beta", "ylabel": "delta", "label": "MAP@R (%)"}


def test_a_heat_map_writes_its_numbers_and_hatches_what_is_absent(figure_of, drawn):
    panels = {"a": [[20.0, 21.5], [None, math.nan]]}
    figure = figure_of(figures.heat_panels, panels, [10, 20], [0.1, 0.2], **HEAT)
    assert {"a", "20.0", "21.5", "10", "0.2", *HEAT.values()} <= set(texts(figure))
    assert sum(bool(patch.get_hatch()) for patch in figure.axes[0].patches) == 2
    equal = drawn(figures.heat_panels, {"": [[20.0, 20.0]]}, [10, 20], [0.1], **HEAT)
    assert equal.count("20.0") == 2


@pytest.mark.parametrize("values", [[[1.0]], [[1.0, 2.0], [3.0]], [[1.0, 2.0]] * 3])
def test_a_heat_map_refuses_another_shape(tmp_path, values):
    with pytest.raises(ValueError, match="must be 2 rows .* of 2"):
        figures.heat_panels({"": values}, [1, 2], [1, 2], tmp_path / "a.svg", **HEAT)


@pytest.mark.parametrize("grey", [0.0, 0.2, 0.4, 0.45, 0.5, 0.6, 1.0])
def test_numbers_in_cells_contrast_with_them(grey):
    from weiss.figures.comparisons import _readable_on

    # Contrast as the guidelines define it: (lighter + 0.05) / (darker + 0.05).
    luminance = grey / 12.92 if grey <= 0.04 else ((grey + 0.055) / 1.055) ** 2.4
    contrast = {"white": 1.05 / (luminance + 0.05), "black": (luminance + 0.05) / 0.05}
    assert contrast[_readable_on((grey, grey, grey))] >= 4.5


def test_costs_leave_out_a_panel_without_values_and_what_is_not_positive(drawn):
    points = {"a": [Point(100, 1.0), Point(10_000, 2.0, -1.0, 3.0), Point(1000, 0.0)]}
    found = drawn(figures.costs, points, {"a": []}, xlabel="classes")
    assert {"time of a step (ms)", "100", "10k"} <= set(found)
    assert not {"peak memory of a step (MB)", "1000"} & set(found)


def test_losses_of_different_size_share_a_scale_on_which_both_show(drawn):
    curves = {"small": [(0.0, 0.0), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 50.0)]}
    assert any("10^{-1}" in text for text in drawn(figures.breakdown, curves, **XY))
    alike = {"small": [(0.0, -0.1), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 0.2)]}
    found = drawn(figures.breakdown, alike, networks={"cub": (0.5, 0.1)}, **XY)
    assert {"small", "large", "cub"} <= set(found)
    of_a_curve = {"small, trained": (0.5, 0.1), "tiny, trained": (0.5, 0.2)}
    found = drawn(figures.breakdown, alike, networks=of_a_curve, **XY)
    assert {"small", "trained", "tiny, trained"} <= set(found)
    assert not any("10^" in text for text in found)


def test_a_breakdown_of_networks_alone_or_all_zero_is_a_figure_too(drawn):
    networks = {"cub": (0.5, 0.1), "no number": (math.nan, 0.1)}
    found = drawn(figures.breakdown, {}, networks=networks, **XY)
    assert "cub" in found
    assert "no number" not in found
    below = {"a": [(0, 0), (1, -1)], "b": [(1, -90)]}
    assert "b" in drawn(figures.breakdown, below, **XY)
    assert "a" in drawn(figures.breakdown, {"a": [(0, 0), (1, 0)]}, **XY)


def test_a_network_far_from_every_curve_is_named_at_the_edge(drawn):
    curves = {"MFCWMS": [(0.0, 0.0), (0.5, 0.06)]}
    near, low, high = (
        drawn(figures.breakdown, curves, networks={"MFCWMS, trained": (0.1, at)}, **XY)
        for at in (0.02, -0.7, 0.7)
    )
    assert "trained" in near
    assert "↓ MFCWMS, trained: -0.7" in " ".join(low)
    assert "↑ MFCWMS, trained: 0.7" in " ".join(high)
    assert "\N{MINUS SIGN}0.6" not in low  # the scale is the curves'


def test_a_search_shows_trials_that_failed_only_where_some_did(drawn):
    found = drawn(figures.search_history, {"a": [0.2, None], "b": [None]})
    assert {"a", "b", "trial", "best so far", "failed"} <= set(found)
    assert "failed" not in drawn(figures.search_history, {"a": [0.2]})


REFUSED = [
    (figures.learning_curves, [[]], "at least one line with values; got 0"),
    (figures.order_parameters, [[]], "an entry 'order'.*none of 0 has"),
    (figures.order_parameters, [[{"epoch": 1}]], "an entry 'order'.*none of 1 has"),
    (figures.order_parameters, [[{"epoch": 1, "order": None}]], "an entry 'order'.*none of 1 has"),
    (figures.order_parameters, [lines(order=())], "an entry 'order'.*none of 4 has"),
    (figures.comparison, [{}, {"level": 1.0}], "at least one point .*got no curve"),
    (figures.comparison, [{"a": []}, {"level": 1.0}], "at least one point .*got none for 'a'"),
    (figures.averaged_curves, [{"a": [lines(evaluated=False)]}], "with 'map_at_r'; got 1 titles"),
    (figures.averaged_order, [{"a": [[{"epoch": 1}]], "b": []}], "'order' .* got 2 titles without"),
    (figures.box_panels, [{"": Boxes({"a": []})}], "at least one number; got 1 panels"),
    (figures.dependence, [{"a": [Point(1, math.nan)]}], "at least one point; got 1 titles"),
    (figures.heat_panels, [{"": [[None, None]]}, [1, 2], [1]], "at least one number; got 2 cells"),
    (figures.costs, [{}, {"a": [Point(1, 0.0)]}], "at least one point; got 1 titles"),
    (figures.breakdown, [{}], "at least one point; got 0 titles"),
    (figures.search_history, [{"a": []}], "at least one trial; got 1"),
]


@pytest.mark.parametrize(("draw", "given", "message"), REFUSED)
def test_no_values_are_no_figure(tmp_path, draw, given, message):
    known = inspect.signature(draw).parameters
    words = {name: "word" for name in ("xlabel", "ylabel", "label") if name in known}
    with pytest.raises(ValueError, match=message):
        draw(*given, tmp_path / "a.svg", **words)
    assert not list(tmp_path.iterdir())


def test_names_below_boxes_are_wrapped_only_where_they_must_be():
    from weiss.figures.comparisons import _names_below
    from weiss.figures.drawing import LETTER

    names = ["solved for", "joint"]
    assert _names_below(names, 2 * 20 * LETTER) == (names, False)
    assert _names_below(names, 2 * 8 * LETTER) == (["solved\nfor", "joint"], False)
    assert _names_below(names, 2 * 3 * LETTER) == (names, True)


def test_residuals_and_corrections_name_what_they_show(drawn):
    words = {"score_label": "MAP@R (%)", "title": "Order"}
    runs = {"fast": [(1, [1.0, 2.0, 3.0, 4.0, 5.0]), (2, [0.1, 0.2, 0.3, 0.4, 0.5])]}
    found = drawn(figures.residuals, runs, {"fast": [(1, 10.0), (2, 20.0)]}, **words)
    assert {"Order", "fast", "MAP@R (%)", "distance of field and class mean"} <= set(found)
    missed = {"CWMS": {"mean field": [(0.1, 5.0), (0.2, 9.0)]}}
    found = drawn(figures.corrections, missed, missed, {"CWMS": {"MFCWMS": [40.0, 42.0]}}, **words)
    assert {"Order", "CWMS: missed (%)", "mean field", "MFCWMS", "one seed"} <= set(found)


def test_ticks_show_large_numbers_in_thousands_and_millions():
    numbers = (0.01, 64, 2_000, 10_000, 10_001, 2_000_000)
    shown = [dependences._short(number) for number in numbers]
    assert shown == ["0.01", "64", "2000", "10k", "10001", "2M"]
