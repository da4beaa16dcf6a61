"""What a report is made from: everything that commands write is understood, nothing else."""

import json

import pytest
from reporting.builders import METRICS, rewrite_metrics, write_comparison, write_run

from weiss.reporting import write_report
from weiss.reporting.reading import read_folders, values_of
from weiss.runs import Run


def test_seeds_become_a_row_with_the_interval_of_students_t(tmp_path):
    scores = [0.2, 0.24, 0.25]
    for seed, score in enumerate(scores):
        write_run(tmp_path / "seeds" / f"seed-{seed}", seed=seed, score=score)
    (tmp_path / "seeds" / "summary.json").write_text(json.dumps({"runs": []}))
    (found,) = read_folders([tmp_path / "seeds"])
    (row,) = found.rows
    mean = sum(scores) / 3
    deviation = (sum((score - mean) ** 2 for score in scores) / 2) ** 0.5
    half = 4.302652729911275 * deviation / 3**0.5  # the quantile of two degrees of freedom
    assert row["scores"]["map_at_r"]["mean"] == pytest.approx(mean)
    assert row["scores"]["map_at_r"]["high"] == pytest.approx(mean + half)
    assert not found.is_given
    assert found.summary["is_complete"]


def test_seeds_stand_in_the_order_of_their_numbers(tmp_path):
    for seed in (10, 9, 2):
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    (found,) = read_folders([tmp_path])
    assert [run.folder.name for run in found.runs(found.rows[0])] == ["seed-2", "seed-9", "seed-10"]


def test_single_runs_on_the_same_data_stand_together_and_others_apart(tmp_path):
    write_run(tmp_path / "a", loss="mf_cwms")
    write_run(tmp_path / "b", loss="proxy_anchor", data="cars")
    write_run(tmp_path / "c", loss="contrastive")
    found = read_folders([tmp_path / name for name in "abc"])
    assert [each.summary["data"] for each in found] == ["cub", "cars"]
    assert [row["title"] for row in found[0].rows] == ["MFCWMS", "Contrastive"]


def test_a_loss_that_stands_twice_is_told_apart_by_its_folder(tmp_path):
    for name in ("one/x", "two/x", "three/y"):
        write_run(tmp_path / name)
    found = read_folders([tmp_path / "one/x", tmp_path / "three/y"])
    assert [row["title"] for row in found[0].rows] == ["MFCWMS (x)", "MFCWMS (y)"]
    found = read_folders([tmp_path / "one/x", tmp_path / "two/x"])
    assert len({row["title"] for row in found[0].rows}) == 2


def test_the_same_folder_twice_counts_once(tmp_path):
    write_run(tmp_path / "a")
    (found,) = read_folders([tmp_path / "a", tmp_path / "a"])
    assert len(found.rows) == 1


def test_scores_on_the_test_set_go_before_those_that_chose_the_epoch(tmp_path):
    test = dict.fromkeys(METRICS, 0.11)
    write_run(tmp_path / "a", on="held_out", test=test)
    (found,) = read_folders([tmp_path / "a"])
    assert found.rows[0]["scores"]["map_at_r"]["mean"] == 0.11
    assert found.summary["measured_on"] == "test"


def test_an_unfinished_run_is_read_and_said_to_be_unfinished(tmp_path):
    write_run(tmp_path / "a", finished=False)
    (found,) = read_folders([tmp_path / "a"])
    assert found.rows[0]["scores"] == {}
    assert not found.summary["is_complete"]
    assert found.unfinished == {str(tmp_path / "a"): "4 of at most 9 epochs"}


def test_what_nothing_was_trained_for_comes_last_and_is_never_best(tmp_path):
    def change(summary):
        summary["rows"].insert(0, summary["rows"].pop())
        summary["rows"][0]["scores"]["map_at_r"]["mean"] = 0.9

    write_comparison(tmp_path, change=change)
    (found,) = read_folders([tmp_path])
    assert found.rows[-1]["loss"] == "untrained"
    assert found.best_row()["loss"] == "proxy_anchor"


def test_what_is_no_run_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="RUNS must name at least one folder"):
        read_folders([])
    with pytest.raises(ValueError, match=r"RUNS must be folders.*there is no such folder"):
        read_folders([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: it is none of these\. Pass the --out folder"):
        read_folders([tmp_path / "empty"])
    write_run(tmp_path / "many" / "a")
    with pytest.raises(ValueError, match=r"many: it is none of these\. It holds .*a: pass those"):
        read_folders([tmp_path / "many"])


def test_a_summary_that_cannot_be_understood_is_refused(tmp_path):
    path = tmp_path / "summary.json"
    for text, said in [
        ('{"format": 1', "must be JSON; it is cut off"),
        ("[1]", "must hold an object"),
        ('{"format": 2}', "must have format 1; got 2"),
        (
            '{"format": 1, "kind": "odd", "rows": []}',
            "a kind, one of traditional.*got the kind 'odd'",
        ),
        ('{"format": 1, "kind": "dimension", "rows": [], "axes": []}', "must name 1 axes"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_folders([tmp_path])


def put(summary, place, value):
    """Replace an entry of a summary, or remove it."""
    *path, last = place.split(".")
    for key in path:
        summary = summary[int(key) if isinstance(summary, list) else key]
    last = int(last) if isinstance(summary, list) else last
    if value is ABSENT:
        del summary[last]
    else:
        summary[last] = value


ABSENT = object()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("rows.0.scores.seconds.mean", "0.9"),
        ("rows.0.scores", []),
        ("rows.0.runs.0", "../../elsewhere"),
        ("rows.0.runs", "seed-0"),
        ("rows.0.name", ABSENT),
        ("rows.0.loss", None),
        ("rows.0.title", 5),
        ("rows.0.at", {"loss.beta": [1]}),
        ("rows.0.trials", 5),
        ("rows.0.trials.1.number", ABSENT),
        ("rows.0.trials.1.settings", ABSENT),
        ("rows.0.best_settings", "beta"),
        ("rows.0.search_space.beta.low", ABSENT),
        ("rows.0", 5),
        ("tests.0.p_value", [1]),
        ("tests.0.metric", ABSENT),
        ("tests.0.first", None),
        ("axes", {"a": 1}),
        ("axes.0.key", ABSENT),
        ("axes.0.label", None),
        ("axes.0.values", [[]]),
        ("recipe", "seed = 0"),
        ("num_done", "3"),
        ("embedding_size", []),
    ],
)
def test_a_summary_with_other_kinds_of_values_is_refused_by_their_place(tmp_path, place, value):
    def change(summary):
        summary["axes"] = [{"key": "loss.beta", "label": "beta", "values": [1]}]
        put(summary, place, value)

    write_comparison(tmp_path, "reality-check", change)
    name = place.replace(".", r"\.")
    with pytest.raises(ValueError, match=f"summary.json must .*{name}.* is no such value"):
        read_folders([tmp_path])


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("value", [None, ABSENT])
def test_what_is_null_or_not_there_is_empty(tmp_path, value):
    places = ["axes", "tests", *(f"rows.0.{key}" for key in ("at", "runs", "failed", "scores"))]
    places += [f"rows.1.scores.map_at_r.{key}" for key in ("values", "low")]

    def change(summary):
        for place in places:
            put(summary, place, value)

    write_comparison(tmp_path, change=change)
    (found,) = read_folders([tmp_path])
    first, second, _ = found.rows
    assert (first["at"], first["runs"], first["failed"], first["scores"]) == ({}, [], {}, {})
    assert (found.summary["axes"], found.summary["tests"]) == ([], [])
    assert values_of(second, "map_at_r") == []
    write_report([tmp_path], tmp_path / "page.html")


def test_a_damaged_result_is_named_and_blocks_no_report_of_a_comparison(tmp_path):
    write_comparison(tmp_path)
    (before,) = read_folders([tmp_path])
    row = before.trained[0]
    path = before.runs(row)[0].folder / "result.json"
    path.write_text(path.read_text()[:20])
    (found,) = read_folders([tmp_path])
    with pytest.warns(UserWarning, match=f"{path} must be JSON; it is cut off"):
        assert len(found.results(row)) == len(found.runs(row)) - 1
    metrics = path.with_name("metrics.jsonl")
    metrics.write_text("[]\n" + metrics.read_text())
    with pytest.warns(UserWarning, match=f"{metrics}, line 1 must .* Its curves are left out"):
        assert len(found.metrics()[found.label(row)]) == len(found.runs(row)) - 1
    with pytest.raises(ValueError, match=f"{path} must be JSON; it is cut off"):
        read_folders([path.parent])  # of a single run there is nothing else to show


def test_metrics_are_those_of_runs_that_have_ended_an_epoch(tmp_path):
    write_comparison(tmp_path)
    for run in ("mf_cwms/seed-1", *(f"proxy_anchor/seed-{seed}" for seed in range(3))):
        rewrite_metrics(Run(tmp_path / run), [])
    (found,) = read_folders([tmp_path])
    assert {label: len(runs) for label, runs in found.metrics().items()} == {"MFCWMS": 2}
