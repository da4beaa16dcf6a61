"""Tables: what is absent is a dash, what is best is told by what is shown, nothing is invented."""

import json
import math

import pytest
from reporting.builders import write_comparison

from weiss.reporting.reading import read_folders, score_of
from weiss.reporting.tables import (
    Column,
    comparison_tables,
    from_columns,
    score_cell,
    settings_text,
    significant,
)


def tables_of(folder, kind="traditional", change=None, **options):
    write_comparison(folder, kind, change, **options)
    (comparison,) = read_folders([folder])
    return comparison_tables(comparison)


def column(table, header):
    at = table.headers.index(header)
    return [row[at] for row in table.rows]


@pytest.mark.parametrize(
    ("score", "shown"),
    [
        (None, None),
        ({}, None),
        ({"mean": None}, None),
        ({"mean": math.nan}, None),
        ({"mean": 0.5}, "50.00"),
        ({"mean": 0.5, "low": 0.4, "high": None}, "50.00"),
        ({"mean": 0.5, "low": -math.inf, "high": math.inf}, "50.00"),
        ({"mean": 0.5, "low": 0.4, "high": 0.6}, "50.00 ± 10.00"),
        ({"mean": 0.9, "median": 0.5, "low": 0.4, "high": 0.6}, "50.00 ± 10.00"),
    ],
)
def test_a_score_is_its_middle_with_its_interval_if_it_has_both_ends(score, shown):
    found = score_of({"scores": {"map_at_r": score}}, "map_at_r", 100)
    assert score_cell(found, decimals=2) == shown


@pytest.mark.parametrize("power", range(-6, 7))
def test_about_three_digits_are_shown_at_any_size(power):
    value = 1.2345 * 10.0**power
    shown = significant(value)
    assert float(shown.replace(",", "")) == pytest.approx(value, rel=0.01)
    assert significant(-value) == f"\N{MINUS SIGN}{shown}"
    assert significant(0.0) == "0"


def test_the_best_are_those_that_read_the_same():
    values = [0.2531, 0.2529, 0.2, None]
    cells = ["25.3 ± 0.1", "25.3 ± 0.2", "20.0", None]
    table = from_columns([Column("MAP@R", cells, "high", values)], "")
    assert table.best == {(0, 0), (1, 0)}
    low = from_columns([Column("epoch", ["4", "3"], "low", [4, 3])], "")
    assert low.best == {(1, 0)}
    alone = from_columns([Column("MAP@R", ["25.3", None], "high", [0.253, None])], "")
    assert not alone.best
    same = from_columns([Column("MAP@R", ["25.3", "25.3"], "high", [0.2531, 0.2529])], "")
    assert not same.best


def test_the_traditional_table_has_the_papers_numbers_beside_ours(tmp_path):
    (table,) = tables_of(tmp_path, "traditional", losses=("mf_cwms", "proxy_anchor", "triplet"))
    assert table.headers == ("loss", "MAP@R", "paper", "P@1", "RP", "best epoch", "paper", "runs")
    assert [row[2] for row in table.rows] == ["25.3 ± 0.3", "25.1 ± 0.2", None, None]
    assert [row[6] for row in table.rows] == ["4.7 ± 0.6", "11.5 ± 1.4", None, None]
    assert "Furusawa" in table.caption
    assert "not the same network" not in table.caption
    assert table.apart == {3}
    assert table.rows[3][0] == "pretrained"
    assert table.rows[3][5] is None


def test_the_epoch_of_a_single_run_is_a_whole_number(tmp_path):
    def change(summary):
        summary["rows"][0]["scores"]["epoch"] = {"values": [28], "mean": 28.0}
        summary["rows"][1]["scores"]["epoch"] = {"values": [9, 9], "mean": 9.0}

    (table,) = tables_of(tmp_path, change=change, data="glyphs")
    assert column(table, "best epoch")[:2] == ["28", "9.0"]


def test_our_numbers_are_those_of_the_summary(tmp_path):
    (table,) = tables_of(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    for row, cells in zip(summary["rows"], table.rows, strict=True):
        score = row["scores"]["map_at_r"]
        half = 100 * ((score["high"] or 0) - (score["low"] or 0)) / 2
        assert cells[1] == f"{100 * score['mean']:.1f}" + (f" ± {half:.1f}" if half else "")


def test_the_highest_score_and_the_earliest_epoch_of_what_was_trained_are_best(tmp_path):
    def change(summary):
        summary["rows"][1]["scores"]["epoch"] = {"values": [9, 9], "mean": 9.0}
        untrained = summary["rows"][2]["scores"]
        untrained["epoch"] = {"values": [0], "mean": 0}
        untrained["map_at_r"]["mean"] = 0.9

    (table,) = tables_of(tmp_path, change=change, data="glyphs")
    bold = {(table.headers[at], table.rows[row][0]) for row, at in table.best}
    scores = {(name, "ProxyAnchor") for name in ("MAP@R", "P@1", "RP")}
    assert bold == scores | {("best epoch", "MFCWMS")}
    assert column(table, "best epoch")[2] is None


@pytest.mark.parametrize("kind", ["traditional", "reality-check", "batch-size", "regularisation"])
def test_data_that_the_paper_does_not_have_get_no_column_of_it(tmp_path, kind):
    for table in tables_of(tmp_path, kind, data="glyphs"):
        assert "paper" not in table.headers
        assert "Furusawa" not in table.caption


def test_one_seed_gets_no_interval_and_the_caption_says_so(tmp_path):
    (table,) = tables_of(tmp_path, "traditional", seeds=1, data="glyphs")
    assert "±" not in str(table.rows)
    assert "one run each, so there is no interval" in table.caption


def test_the_reality_check_has_separated_and_concatenated_scores_of_its_sizes(tmp_path):
    first, second = tables_of(tmp_path / "cub", "reality-check")
    assert first.groups == (("", 1), ("separated, 128-d", 6), ("", 1))
    assert second.groups == (("", 1), ("concatenated, 512-d", 6), ("", 1))
    assert first.rows[0][2] == "22.11 ± 0.08"
    assert second.rows[0][2] == "27.03 ± 0.12"
    glyphs = {"data": "glyphs", "size": 32, "protocol": {"folds": 3}}
    (table,) = tables_of(tmp_path / "glyphs", "reality-check", **glyphs)
    names = [name for name, _ in table.groups]
    assert names == ["", "separated, 32-d", "concatenated, 96-d", ""]
    assert "3 folds" in table.caption


def test_studies_stand_by_the_value_of_their_axis_with_the_paper_beside(tmp_path):
    table, *_ = tables_of(tmp_path, "batch-size", losses=("mf_cwms", "proxy_anchor"))
    assert table.headers == ("batch size", "MFCWMS", "paper", "ProxyAnchor", "pretrained")
    assert column(table, "batch size") == ["30", "60", "90"]
    assert column(table, "paper") == ["23.3 ± 0.3", "24.4 ± 0.1", "25.1 ± 0.1"]
    # What was not trained does not depend on the batch, and competes with nothing.
    assert column(table, "pretrained") == ["10.0"] * 3
    assert not any(at == 4 for _, at in table.best)


def test_an_untrained_network_is_of_one_dimension_and_what_was_not_run_yet_is_absent(tmp_path):
    table, *_ = tables_of(tmp_path, "dimension", lambda summary: summary["rows"].pop(1), size=64)
    assert column(table, "pretrained") == [None, "10.0", None]
    assert column(table, "MFCWMS")[1] is None
    assert None not in column(table, "ProxyAnchor")


def test_a_grid_has_one_axis_to_the_right_and_one_down_and_one_best(tmp_path):
    (table,) = tables_of(tmp_path, "beta-delta", losses=("mf_cwms",))
    *rows, _ = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert table.headers[1:] == ("40", "80")
    assert column(table, table.headers[0]) == ["0.1", "0.2", "0.4"]
    for row in rows:
        down = ["0.1", "0.2", "0.4"].index(f"{row['at']['loss.delta']:g}")
        cell = column(table, f"{row['at']['loss.beta']:g}")[down]
        assert cell.startswith(f"{100 * row['scores']['map_at_r']['mean']:.1f} ±")
    (best,) = {table.rows[row][at].split()[0] for row, at in table.best}
    assert best == f"{100 * max(row['scores']['map_at_r']['mean'] for row in rows):.1f}"


def test_ways_of_finding_fields_are_rows(tmp_path):
    (table,) = tables_of(tmp_path, "fields", losses=("mf_cwms",))
    assert table.headers[:3] == ("loss", "fields found", "MAP@R")
    assert column(table, "fields found") == ["joint", "alternating", None]


def test_costs_are_milliseconds_and_megabytes_and_the_least_is_best(tmp_path):
    time, memory = tables_of(tmp_path, "classes")
    assert "Median milliseconds" in time.caption
    assert "Peak megabytes" in memory.caption
    assert time.headers == ("loss", "100", "1,000", "100,000")
    assert time.best == {(0, 1), (0, 2), (0, 3)}


def test_a_cost_is_a_median_and_absent_of_a_loss_that_ran_out_of_memory(tmp_path):
    def change(summary):
        summary["rows"][1]["scores"]["milliseconds"] |= {"mean": 34.0, "median": 2.0}
        summary["rows"][2]["scores"] = {}

    time, _ = tables_of(tmp_path, "classes", change)
    assert time.rows[0] == ("MFCWMS", "0.100", "2.00", None)


def test_the_breakdown_shows_both_losses_and_the_excess_at_each_spread_and_of_networks(tmp_path):
    def change(summary):
        summary["rows"][1].update(at={}, network="trained")

    (table,) = tables_of(tmp_path, "breakdown", change, losses=("mf_cwms",))
    assert table.headers == ("loss", "spread", "pair loss", "mean field", "gap", "excess")
    assert table.rows[2] == ("MFCWMS", "0.400", "1.40", "1.00", "0.400", "0.400")
    assert table.rows[1][:2] == ("MFCWMS, trained network", "0.100")


def test_settings_are_one_line():
    assert (
        settings_text({"beta": 50.123456, "how": "joint", "n": 3}) == "beta 50.12, how joint, n 3"
    )
    assert settings_text({}) is None
