"""Figures: what they show is what was given, what is absent is left out, bytes do not vary."""

import itertools
import math
import re

import pytest
import torch

from weiss import plots
from weiss.data import from_arrays
from weiss.data.sheet import draw_sheet


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
    found = drawn(plots.learning_curves, lines(), folder=tmp_path, best_epoch=4, title="A run")
    assert {"A run", "Training loss", "Retrieval (%)", "Learning rate"} <= set(found)
    assert {"MAP@R", "R-precision", "P@1", "network", "fields", "warm-up"} <= set(found)
    assert "best: epoch 4" in found
    assert "MAP@R 40.0 %" in found


def test_a_panel_without_values_is_left_out(tmp_path):
    found = drawn(plots.learning_curves, lines(evaluated=False), folder=tmp_path)
    assert "Training loss" in found
    assert not {"Retrieval (%)", "MAP@R"} & set(found)


def test_warm_up_is_shaded_where_there_was_one(tmp_path):
    trained = [{**line, "phase": "training"} for line in lines()]
    assert "warm-up" not in drawn(plots.learning_curves, trained, folder=tmp_path)
    told = drawn(plots.learning_curves, trained, folder=tmp_path, warmup_epochs=2)
    assert "warm-up" in told


def test_a_learning_rate_of_zero_has_no_place_on_a_logarithmic_axis(tmp_path):
    frozen = [{**line, "lr": {"network": 0.0, "fields": 0.2}} for line in lines()]
    found = drawn(plots.learning_curves, frozen, folder=tmp_path)
    assert "fields" in found
    assert "network" not in found


def test_a_loss_that_is_no_number_is_a_gap(tmp_path):
    diverged = lines()
    diverged[-1]["loss"] = math.nan
    diverged[-2]["loss"] = None
    assert "Training loss" in drawn(plots.learning_curves, diverged, folder=tmp_path)


def test_one_epoch_is_a_figure_too(tmp_path):
    assert "Training loss" in drawn(plots.learning_curves, lines(1), folder=tmp_path)
    assert "epoch" in drawn(plots.order_parameters, lines(1), folder=tmp_path)


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_best_epoch_must_have_been_evaluated(tmp_path, evaluated):
    known = "2, 4" if evaluated else "none"
    message = f"best_epoch must be an epoch that was evaluated; got 3, evaluated: {known}"
    with pytest.raises(ValueError, match=message):
        plots.learning_curves(lines(evaluated=evaluated), tmp_path / "a.png", best_epoch=3)
    assert not list(tmp_path.iterdir())


def test_no_lines_are_no_figure(tmp_path):
    with pytest.raises(ValueError, match="at least one line with values; got 0"):
        plots.learning_curves([], tmp_path / "a.png")
    with pytest.raises(ValueError, match="an entry 'order'.*none of 0 has"):
        plots.order_parameters([], tmp_path / "a.png")


def test_order_parameters_have_three_panels_and_say_what_the_bands_are(tmp_path):
    found = drawn(plots.order_parameters, lines(), folder=tmp_path, title="Order")
    assert {"Order", "Length of class means", "Residual of self-consistency"} <= set(found)
    assert "Violating pairs of fields (%)" in found
    assert {"median of the classes", "25 to 75 %", "5 to 95 %"} <= set(found)


def test_losses_without_fields_have_one_order_parameter(tmp_path):
    found = drawn(plots.order_parameters, lines(order=["class_mean_length"]), folder=tmp_path)
    assert "Length of class means" in found
    assert not {"Residual of self-consistency", "Violating pairs of fields (%)"} & set(found)
    found = drawn(plots.order_parameters, lines(order=["violating_share"]), folder=tmp_path)
    assert "Violating pairs of fields (%)" in found
    assert "median of the classes" not in found


@pytest.mark.parametrize("kept", [{}, None, "absent"])
def test_no_order_parameter_at_all_is_refused(tmp_path, kept):
    without = [{**line, "order": kept} for line in lines()]
    if kept == "absent":
        without = [{key: line[key] for key in line if key != "order"} for line in lines()]
    with pytest.raises(ValueError, match="must have an entry 'order'.*none of 4 has"):
        plots.order_parameters(without, tmp_path / "a.png")


def test_a_residual_over_decades_is_logarithmic_and_one_with_zeros_is_not(tmp_path):
    decades = drawn(plots.order_parameters, lines(order=["residual"]), folder=tmp_path)
    assert any("10^{-3}" in text for text in decades)
    zeros = lines(order=["residual"])
    zeros[0]["order"]["residual"][0] = 0.0
    found = drawn(plots.order_parameters, zeros, folder=tmp_path)
    assert not any("10^{-3}" in text for text in found)


def test_nothing_violated_throughout_is_a_line_at_the_bottom(tmp_path):
    settled = [{**line, "order": {"violating_share": 0.0}} for line in lines()]
    assert "0.0" in drawn(plots.order_parameters, settled, folder=tmp_path)


def test_order_parameters_that_are_no_numbers_are_gaps(tmp_path):
    diverged = lines()
    diverged[0]["order"] = {"residual": [math.nan] * 5, "violating_share": math.nan}
    found = drawn(plots.order_parameters, diverged, folder=tmp_path)
    assert {"Residual of self-consistency", "Violating pairs of fields (%)"} <= set(found)


def test_a_comparison_labels_every_curve_and_level(tmp_path):
    curves = {
        "mean field": [(1, 10.0), (2, 50.0)],
        "pairs": [(1, 9.0), (2, 49.9)],
        "p$a$": [(1, 3)],
    }
    levels = {"untrained": 3.0, "published": 50.1}
    found = drawn(plots.comparison, curves, levels, folder=tmp_path, ylabel="MAP@R (%)")
    # Dollars are dollars: nothing that was given is read as a formula.
    assert {*curves, *levels, "MAP@R (%)"} <= set(found)


@pytest.mark.parametrize(("curves", "got"), [({}, "no curve"), ({"a": []}, "none for 'a'")])
def test_a_comparison_needs_curves_with_points(tmp_path, curves, got):
    with pytest.raises(ValueError, match=f"at least one point .*got {got}"):
        plots.comparison(curves, {"level": 1.0}, tmp_path / "a.png", ylabel="y")


@pytest.mark.parametrize("seed", range(10))
def test_labels_do_not_overlap_and_keep_their_order(seed):
    generator = torch.Generator().manual_seed(seed)
    wanted = (torch.rand(7, generator=generator) ** 3).tolist()
    heights = [0.05, 0.1, 0.05, 0.15, 0.05, 0.05, 0.1]
    placed = plots._spread_out(wanted, heights)
    for i, j in itertools.permutations(range(7), 2):
        if wanted[i] < wanted[j]:
            assert placed[j] - placed[i] >= (heights[i] + heights[j]) / 2 - 1e-3
    for at, height in zip(placed, heights, strict=True):
        assert height / 2 - 1e-9 <= at <= 1 - height / 2 + 1e-9


def test_labels_with_room_stand_where_they_belong():
    assert plots._spread_out([0.2, 0.9, 0.5], [0.1, 0.1, 0.1]) == [0.2, 0.9, 0.5]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_figure_has_the_same_bytes(tmp_path, suffix):
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for path in (first, second):
        plots.learning_curves(lines(), path, best_epoch=2)
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()


def test_the_suffix_says_what_is_written(tmp_path):
    for name, start in (("a.png", b"\x89PNG"), ("a.PNG", b"\x89PNG"), ("a.svg", b"<?xml")):
        plots.order_parameters(lines(), tmp_path / "new" / name)
        assert (tmp_path / "new" / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match="must end in .png or .svg; got .*a.jpg"):
        plots.order_parameters(lines(), tmp_path / "a.jpg")


def test_circles_and_sheets_are_drawn_as_before(tmp_path):
    labels = torch.tensor([0, 1, 0])
    runs = {"a loss": [(0, torch.randn(3, 2), torch.randn(2, 2))]}
    plots.settling(runs, labels, tmp_path / "circle.png")
    pixels = torch.randint(256, (12, 8, 8, 1), dtype=torch.uint8).numpy()
    table = from_arrays(pixels, [i % 4 for i in range(12)])
    draw_sheet(table, tmp_path / "sheet.svg")
    assert (tmp_path / "circle.png").stat().st_size
    assert texts(tmp_path / "sheet.svg")
