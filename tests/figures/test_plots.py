"""Figures show what was given, leave out what is absent, and have the same bytes each time."""

import inspect
import itertools
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest
import torch
from unrendered import texts

from weiss import figures
from weiss.data import from_arrays
from weiss.figures import Boxes, Point, drawing

PANELS = ("Length of class means", "Residual of self-consistency", "Violating pairs of fields (%)")
XY = {"xlabel": "x", "ylabel": "y"}
HEAT = {"xlabel": "beta", "ylabel": "delta", "label": "MAP@R (%)"}


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


def changed(at, **entries):
    """Lines of a run, one of them with other entries."""
    made = lines()
    made[at] |= entries
    return made


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


def power(exponent):
    """A power of ten, as a logarithmic axis writes it."""
    return rf"$\mathdefault{{10^{{{exponent}}}}}$"


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_best_epoch_must_have_been_evaluated(tmp_path, evaluated):
    known = "2, 4" if evaluated else "none"
    message = f"best_epoch must be an epoch that was evaluated; got 3, evaluated: {known}"
    with pytest.raises(ValueError, match=message):
        figures.learning_curves(lines(evaluated=evaluated), tmp_path / "a.png", best_epoch=3)
    assert not list(tmp_path.iterdir())


def test_the_network_before_training_is_epoch_0(figure_of):
    first, *others = lines()
    metrics = [{**first, "before": {"map_at_r": 0.125}}, *others]
    (_, retrieval, *_) = figure_of(figures.learning_curves, metrics).axes
    ((x, y),) = [line.get_xydata()[0] for line in retrieval.lines if line.get_xdata()[0] == 0]
    assert (x, y) == (0, 12.5)
    assert retrieval.get_xlim()[0] == -0.5


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
    figures.search_history({"é ↓": [0.2, None]}, path)


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


def table_of(*names):
    """A table of a class for each name, with three images each."""
    labels = [name for name in names for _ in range(3)]
    return from_arrays(np.zeros((len(labels), 8, 8, 1), dtype=np.uint8), labels)


def test_circles_and_sheets_are_drawn(drawn):
    labels = torch.tensor([0, 1, 0])
    runs = {"a loss": [(0, torch.randn(3, 2), torch.randn(2, 2))]}
    assert {"a loss", "step 0"} <= set(drawn(figures.settling, runs, labels))
    assert {"a", "b", "c"} <= set(drawn(figures.draw_sheet, table_of("a", "b", "c")))


ODD = "\udcff \x01 $\\odd$ --> ]]>"
"""A byte that is no text, a control character, a broken formula, the end of a comment."""


@pytest.mark.parametrize(
    ("draw", "given", "options"),
    [
        (figures.averaged_curves, [{ODD: [lines()]}], {"levels": {ODD: 3.0}}),
        (figures.box_panels, [{ODD: Boxes({ODD: [1.0]})}], {"ylabel": ODD}),
        (figures.heat_panels, [{ODD: [[1.0]]}, [ODD], [ODD]], dict.fromkeys(HEAT, ODD)),
        (figures.costs, [{ODD: [Point(1, 1.0)]}, {}], {"xlabel": ODD}),
        (figures.learning_curves, [lines()], {"title": ODD}),
        (figures.draw_sheet, [table_of("a", ODD.replace("\udcff", ""))], {}),
    ],
)
def test_every_text_is_shown_and_none_is_obeyed(tmp_path, draw, given, options):
    path = tmp_path / "a.svg"
    draw(*given, path, **options)
    minidom.parse(str(path))
    assert r"$\odd$" in path.read_text()


def heights_of(figure, colour):
    """The heights of all lines of a colour, panel by panel."""
    drawn = [line for axis in figure.axes for line in axis.get_lines()]
    return [y for line in drawn if line.get_color() == colour for y in line.get_ydata()]


def test_averaged_curves_are_means_over_the_runs_that_reached_an_epoch(figure_of):
    def run(*values):
        return [{"epoch": at, "evaluation": {"map_at_r": v}} for at, v in enumerate(values, 1)]

    figure = figure_of(figures.averaged_curves, {"a": [run(0.1, 0.2), run(0.3, 0.4, 0.5)]})
    assert heights_of(figure, figures.COLOURS[0]) == pytest.approx([20, 30, 50])


def test_order_is_the_median_over_classes_averaged_over_the_seeds_that_reached_an_epoch():
    seeds = [
        order_run([0.2, 0.4], [0.6, 0.4], [0.1, 0.0]),
        order_run([0.4, 0.5, 0.9], [0.8, 0.2, 0.1], [0.3, 0.02, 0.01]),
    ]
    found = figures.averages({"MFCWMS": seeds})
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
    found = figures.averages(runs)
    assert {key: list(curves) for key, curves in found.items()} == {
        "class_mean_length": ["half", "pairs"],
        "residual": ["half"],
    }
    assert found["class_mean_length"]["half"].means == [0.5]
    assert found["class_mean_length"]["half"].num_runs == 1
    assert found["class_mean_length"]["pairs"].means == [0.75, 0.8]
    assert figures.averages({"nothing": [absent], "pairs": []}) == {}


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


def case(draw, *shown, absent=()):
    """A figure, texts that it shows, and texts that it does not."""
    return draw, set(shown), set(absent)


def curves(metrics, **options):
    return partial(figures.learning_curves, metrics, **options)


def order(metrics):
    return partial(figures.order_parameters, metrics)


def mean_order(**runs):
    return partial(figures.averaged_order, runs)


def boxes(*given):
    return partial(figures.box_panels, {"": Boxes(*given)}, ylabel="y")


def dependence(*points, **published):
    return partial(figures.dependence, {"a": points}, published=published, **XY)


def breakdown(curves, **networks):
    return partial(figures.breakdown, curves, networks=networks, **XY)


ZEROS = lines(order=["residual"])
ZEROS[0]["order"]["residual"][0] = 0.0
DECADES = [order_run(residuals=[1.0, 0.1, 0.01])]
BANDS = ("median of the classes", "25 to 75 %", "5 to 95 %")
NEAR = {"small": [(0.0, -0.1), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 0.2)]}
FAR = {"small": [(0.0, 0.0), (1.0, 0.1)], "large": [(0.0, 0.0), (1.0, 50.0)]}
SHOWN = {
    "a run has three panels": case(
        curves(lines(), title="A run"),
        *("A run", "Training loss", "Retrieval (%)", "Learning rate"),
        *("MAP@R", "RP", "P@1", "network", "fields", "warm-up"),
    ),
    "the best epoch is marked": case(
        curves(lines(), best_epoch=4), "best: epoch 4", "MAP@R 40.0 %"
    ),
    "a panel without values is left out": case(
        curves(lines(evaluated=False)), "Training loss", absent=["Retrieval (%)", "MAP@R"]
    ),
    "warm-up is shaded where there was one": case(
        curves([{**line, "phase": "training"} for line in lines()]), absent=["warm-up"]
    ),
    "a rate of zero has no place on a logarithmic axis": case(
        curves([{**line, "lr": {"network": 0.0, "fields": 0.2}} for line in lines()]),
        "fields",
        absent=["network"],
    ),
    "a loss that is no number is a gap": case(curves(changed(-1, loss=math.nan)), "Training loss"),
    "so is one that is absent": case(curves(changed(-1, loss=None)), "Training loss"),
    "one epoch is enough": case(curves(lines(1)), "Training loss"),
    "order has three panels, and a legend of the bands": case(order(lines()), *PANELS, *BANDS),
    "a loss without fields has the first": case(
        order(lines(order=["class_mean_length"])), PANELS[0], absent=PANELS[1:]
    ),
    "without classes there is no legend": case(
        order(lines(order=["violating_share"])), PANELS[2], absent=[*PANELS[:2], *BANDS]
    ),
    "a residual over decades is logarithmic": case(order(lines(order=["residual"])), power(-3)),
    "one with zeros is not": case(order(ZEROS), absent=[power(-3)]),
    "nothing violated throughout is a line at the bottom": case(
        order([{**line, "order": {"violating_share": 0.0}} for line in lines()]), "0.0"
    ),
    "order that is no number is a gap": case(
        order(changed(0, order={"residual": [math.nan] * 5, "violating_share": math.nan})),
        *PANELS[1:],
    ),
    "order of one epoch is enough": case(order(lines(1)), "epoch"),
    "titles without an evaluation have no curve": case(
        partial(
            figures.averaged_curves,
            {"trained": [lines()], "not yet": [lines(evaluated=False)], "nothing": []},
        ),
        "trained",
        absent=["not yet", "nothing"],
    ),
    "titles without order have no line, and panels without lines are left out": case(
        mean_order(MS=[order_run([0.5, 0.6])], PA=[order_run([0.7], [0.9])], none=[[]]),
        *(*PANELS[:2], "epoch", "MS", "PA"),
        absent=[PANELS[2], "none"],
    ),
    "mean residuals over decades are logarithmic": case(mean_order(a=DECADES), power(-1)),
    "those with zeros are not": case(
        mean_order(a=DECADES, b=[order_run(residuals=[0.0])]), absent=[power(-1)]
    ),
    "a share of next to nothing does not fill its panel": case(
        mean_order(a=[order_run(shares=[0.0, 0.00001])]), "0.0", "1.0"
    ),
    "a level near the data is drawn": case(boxes({"a": [25.0, 26.0]}, {"near": 23.0}), "near"),
    "a level far away is told": case(
        boxes({"a": [25.0, 26.0]}, {"low": 2.0, "high": 80.0}), "↓ low: 2.0", "↑ high: 80.0"
    ),
    "titles without values have no box": case(
        boxes({"one": [25.0], "none": [], "no number": [math.nan], "equal": [24.0, 24.0]}),
        *("one", "equal"),
        absent=["none", "no number", "published"],
    ),
    "a single run has neither box nor interval": case(
        boxes({"one": [25.0]}), "one run", absent=["mean, 95 % interval", "median, quartiles"]
    ),
    "published lines alone say that they are": case(
        dependence(a=[Point(1, 2.0)]), "a (published)", absent=["measured here"]
    ),
    "published lines beside measured ones are explained": case(
        dependence(Point(1, 2.0), a=[Point(1, 2.0)]), "a", "published", "measured here"
    ),
    "an interval that misses its mean or half of it is no error": case(
        dependence(Point(1, 5.0, 6.0, 7.0), Point(2, 5.0, None, 6.0), Point(3, 5.0, math.nan, 9.0)),
        "a",
    ),
    "numbers at ticks give way to larger ones": case(
        dependence(*(Point(2**exponent, exponent) for exponent in range(3, 11))),
        *("256", "512", "1024"),
        absent=["16"],  # on a linear axis it stands on 32
    ),
    "what is not positive has no cost, and a panel without costs is left out": case(
        partial(
            figures.costs,
            {"a": [Point(100, 1.0), Point(10_000, 2.0, -1.0, 3.0), Point(1000, 0.0)]},
            {"a": []},
            xlabel="classes",
        ),
        *("time of a step (ms)", "100", "10k"),
        absent=["peak memory of a step (MB)", "1000"],
    ),
    "losses of different size share a scale on which both show": case(breakdown(FAR), power(-1)),
    "losses of like size have a linear one, and networks a legend": case(
        breakdown(NEAR, trained={"small": (0.5, 0.1)}),
        *("small", "large", "trained network"),
        absent=[power(-1)],
    ),
    "networks alone are a figure": case(
        breakdown({}, trained={"a": (0.5, 0.1)}, lost={"a": (math.nan, 0.1)}),
        "trained network",
        absent=["lost network"],
    ),
    "so are curves below zero": case(breakdown({"a": [(0, 0), (1, -1)], "b": [(1, -90)]}), "b"),
    "and curves of zeros": case(breakdown({"a": [(0, 0), (1, 0)]}), "a"),
    "trials that failed are explained": case(
        partial(figures.search_history, {"a": [0.2, None], "b": [None]}),
        *("a", "b", "trial", "best so far", "failed"),
        absent=["pruned"],
    ),
    "so are those that were pruned": case(
        partial(figures.search_history, {"a": [0.2, 0.1]}, pruned={"a": {1}}),
        "pruned",
        absent=["failed"],
    ),
}


@pytest.mark.parametrize(("draw", "shown", "absent"), SHOWN.values(), ids=SHOWN)
def test_figures_show_what_there_is(drawn, draw, shown, absent):
    found = set(drawn(draw))
    assert shown <= found
    assert not absent & found


def test_the_interval_of_two_runs_does_not_flatten_the_others(drawn):
    def highest(values):
        found = drawn(figures.box_panels, {"": Boxes(values)}, ylabel="y")
        return max(float(text) for text in found if text.replace(".", "").isdigit())

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


def test_a_heat_map_writes_its_numbers_and_hatches_what_is_absent(figure_of, drawn):
    panels = {"a": [[20.0, 21.5], [None, math.nan]]}
    figure = figure_of(figures.heat_panels, panels, [10, 20], [0.1, "all"], **HEAT)
    assert {"a", "20.0", "21.5", "10", "0.1", "all", *HEAT.values()} <= set(texts(figure))
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


def test_a_network_far_from_every_curve_is_named_at_the_edge(figure_of):
    curves = {"MFCWMS": [(0.0, 0.0), (0.5, 0.06)]}
    for height, said in (
        (0.02, None),
        (-0.7, "↓ MFCWMS, trained: -0.7"),
        (0.7, "↑ MFCWMS, trained: 0.7"),
    ):
        networks = {"trained": {"MFCWMS": (0.1, height)}}
        figure = figure_of(figures.breakdown, curves, networks=networks, **XY)
        assert (height in heights_of(figure, figures.COLOURS[0])) is (said is None)
        assert said is None or said in " ".join(texts(figure))
        assert max(map(abs, figure.axes[0].get_ylim())) < 0.1  # the scale is the curves'


REFUSED = [
    (figures.learning_curves, [[]], "a line with values; got 0 lines"),
    (figures.order_parameters, [[]], "an entry 'order'.*got 0 lines"),
    (figures.order_parameters, [[{"epoch": 1}]], "an entry 'order'.*got 1 lines"),
    (figures.order_parameters, [[{"epoch": 1, "order": None}]], "an entry 'order'.*got 1 lines"),
    (figures.order_parameters, [lines(order=())], "an entry 'order'.*got 4 lines"),
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

    names, letter = ["solved for", "joint"], drawing.LETTER
    assert _names_below(names, 2 * 20 * letter) == (names, False)
    assert _names_below(names, 2 * 8 * letter) == (["solved\nfor", "joint"], False)
    assert _names_below(names, 2 * 3 * letter) == (names, True)


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
    shown = [drawing.short(number) for number in numbers]
    assert shown == ["0.01", "64", "2000", "10k", "10001", "2M"]
