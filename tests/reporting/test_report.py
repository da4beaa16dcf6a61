"""Reports: every kind in every format, and what is missing, failed or unread is said."""

import dataclasses
import re
from functools import cache
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from reporting.builders import KINDS, write_comparison, write_run
from reporting.latex import check_latex
from unrendered import leave_unrendered

from weiss.evaluation import evaluate_retrieval
from weiss.reporting import Looked, write_report
from weiss.reporting.document import Document


def report(folders, out, *, figures=False, **options):
    """Write a report; return the visible text of the page, the Markdown and the LaTeX.

    Figures are left out where a test is not about them: drawing is what takes time.
    """
    folders = folders if isinstance(folders, list) else [folders]
    with pytest.MonkeyPatch.context() as patch:
        if not figures:
            patch.setattr(Document, "figure", lambda *arguments: None)
        written = write_report(folders, out / "page.html", **options)
    assert all(path.is_file() for path in written)
    html, markdown, latex = (path.read_text(encoding="utf-8") for path in written[:3])
    check_latex(latex)
    body = html[html.index("<body>") :]
    text = unescape(re.sub(r"<[^>]*>", " ", body))
    return re.sub(r"\s+", " ", text), markdown, latex


def told(folder, change=None, kind="traditional", **options):
    """Write a comparison, changed by a function of its summary, and the report of it."""
    write_comparison(folder / "a", kind, change=change, **options)
    return report(folder / "a", folder)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A function that returns of every kind its folder and its three texts, written once."""

    @cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        write_comparison(folder / "comparison", kind)
        with pytest.MonkeyPatch.context() as patch:
            if kind != "traditional":  # one whole report is enough: figures have their own tests
                leave_unrendered(patch)
            return folder, report(folder / "comparison", folder, figures=True)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_stands_in_all_three_formats_with_its_figures(made, kind):
    folder, (page, markdown, latex) = made(kind)
    assert f"What does {kind} ask?" in page
    assert f"What does {kind} ask?" in markdown
    for text in (page, markdown, latex):
        assert "MFCWMS" in text
    assert latex.count(r"\begin{table}") >= 1
    html = (folder / "page.html").read_text()
    assert html.count("<table") == latex.count(r"\begin{table}")
    assert html.count("<table") == len(re.findall(r"^\| -", markdown, flags=re.MULTILINE))
    assert not re.search(r"https?://|<script|<link", html)
    # Every figure is vector for screen and paper, and linked.
    figures = sorted(path.name for path in (folder / "page-figures").iterdir())
    stems = {name.rsplit(".", 1)[0] for name in figures}
    assert stems
    assert figures == sorted(f"{stem}{suffix}" for stem in stems for suffix in (".pdf", ".svg"))
    linked = re.findall(r"\]\((page-figures/[^)]+)\)", markdown)
    assert sorted(linked) == sorted(f"page-figures/{stem}.svg" for stem in stems)
    assert html.count("data:image/svg+xml") == len(stems)


@pytest.mark.parametrize("kind", ["traditional", "reality-check", "classes"])
def test_the_formats_agree_cell_by_cell(made, kind):
    folder, (_, markdown, latex) = made(kind)
    html = (folder / "page.html").read_text()
    pages = [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr(?: class=\"apart\")?>(<th scope=\"row\".*?)</tr>", html)
    ]
    shown = [unescape(cell) for row in pages for cell in row]
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    lines = [line for at, line in enumerate(lines) if "---" not in line]
    cells = [
        unescape(re.sub(r"\\(.)", r"\1", cell.strip().replace("*", "")))
        for line in lines
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
    ]
    for cell in shown:
        assert cell in cells
    for cell in shown:
        if re.fullmatch(r"[\d.]+ ± [\d.]+", cell):
            mean, half = cell.split(" ± ")
            assert rf"${mean} \pm {half}$" in latex or rf"$\mathbf{{{mean}}} \pm {half}$" in latex


def test_the_lead_says_who_is_best_by_how_much_and_whether_that_is_chance(made):
    _, (page, markdown, _) = made("traditional")
    lead = page[: page.index("What was found")]
    assert "6 runs of 2 losses (bn_inception, 128 dimensions)." in lead
    assert re.search(
        r"ProxyAnchor is best with MAP@R 2\d\.\d %, \d\.\d\d points above MFCWMS", lead
    )
    few = "3 pairs are too few to tell that from chance"
    assert few in lead
    assert few in markdown.split("## ")[0]


def test_what_chance_may_explain_is_not_called_significant(tmp_path):
    page, _, latex = told(tmp_path, seeds=5)
    assert "is significant after Holm's correction (p = 0.031, 5 pairs)" in page
    assert "some tests have" not in page
    assert r"\mathbf{0.031}" in latex
    page, *_ = told(tmp_path, lambda summary: summary["tests"][0].update(corrected=0.2), seeds=5)
    assert "is not significant after Holm's correction (p = 0.200" in page
    page, *_ = told(tmp_path, tests=[])
    assert "whether that is chance was not tested" in page
    assert "Significance" not in page


def test_tests_have_differences_in_points_and_few_pairs_are_warned_of(made):
    _, (page, markdown, latex) = made("traditional")
    for text in (page, markdown):
        assert "\N{MINUS SIGN}1.23 (\N{MINUS SIGN}2.00 to \N{MINUS SIGN}0.40)" in text
    assert r"\mathbf{0.031}" not in latex
    assert "some tests have 3 pairs" in page


def test_an_incomplete_comparison_says_how_far_it_is(tmp_path):
    def change(summary):
        summary["rows"][1].update(scores={}, failed={"proxy_anchor/seed-1": "out of <memory>"})

    options = {"is_complete": False, "num_done": 7, "num_units": 12}
    page, markdown, latex = told(tmp_path, change, **options)
    assert "not complete: 7 of 12 units are done" in page
    assert "7 of 12 units are done" in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("| ProxyAnchor"))
    assert row.split("|")[2].strip() == "\N{EN DASH}"
    assert "out of <memory>" in page
    assert r"out of \textless{}memory\textgreater{}" in latex


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_that_has_just_begun_has_a_page(tmp_path, kind):
    def change(summary):
        for row in summary["rows"]:
            row.update(scores={}, runs=[])
            row.pop("trials", None)

    begun = {"is_complete": False, "num_done": 0, "tests": []}
    write_comparison(tmp_path / "a", kind, change=change, **begun)
    page, _, latex = report(tmp_path / "a", tmp_path, figures=True)
    assert "no scores yet" in page or "no measurements yet" in page
    assert r"\multicolumn{0}" not in latex
    told(tmp_path, kind=kind, rows=[], **begun)


def test_failed_and_pruned_trials_are_listed_with_their_reasons(made):
    _, texts = made("reality-check")
    for text in texts:
        assert text.count("the loss became NaN in fold 2") == 2
        assert text.count("below the median after fold 1") == 2
    page = texts[0]
    assert "beta 50.12, class_lr 0.01" in page
    assert "seconds of the search" in page


@pytest.mark.usefixtures("unrendered")
def test_the_same_input_gives_the_same_bytes(tmp_path):
    write_comparison(tmp_path / "a", "fields", losses=("mf_cwms",))
    texts = []
    for name in ("one", "two"):
        written = write_report([tmp_path / "a"], tmp_path / name / "page.html")
        texts.append({path.relative_to(tmp_path / name): path.read_bytes() for path in written})
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("unrendered")
def test_several_comparisons_begin_with_what_each_found_and_their_figures_do_not_meet(tmp_path):
    held_out = "held-out training classes"
    for name, changes in (("a", {}), ("b", {"data": "cars"}), ("c", {"selected_on": held_out})):
        write_comparison(tmp_path / name, **changes)
    folders = [tmp_path / name for name in "abc"]
    page, markdown, latex = report(folders, tmp_path, figures=True)
    assert "3 comparisons." in page
    found = [match.start() for match in re.finditer("is best with", page)]
    assert len(found) == 3
    assert max(found) < page.index("How to reproduce")
    assert page.count("How to reproduce") == 3
    cub = "## The traditional comparison on cub"
    headings = [line for line in markdown.splitlines() if line.startswith("## ")]
    assert headings == [cub, cub.replace("cub", "cars"), f"{cub}, chosen on {held_out}"]
    labels = re.findall(r"\\label\{(.*?)\}", latex)
    assert len(labels) == len(set(labels)) > 4
    names = {path.name[:2] for path in (tmp_path / "page-figures").iterdir()}
    assert names == {"01", "02", "03"}


def test_rows_with_other_numbers_of_runs_are_compared_on_what_both_have(tmp_path):
    def change(found):
        best, second = (row for row in found["rows"] if row["loss"] in ("mf_cwms", "proxy_anchor"))
        for row, values in ((best, [0.30]), (second, [0.29, 0.10])):
            row["runs"], row["repetitions"] = row["runs"][: len(values)], list(range(len(values)))
            mean = sum(values) / len(values)
            row["scores"]["map_at_r"] = {"values": values, "mean": mean, "low": None, "high": None}
        found["rows"] = [best, second]
        found["tests"] = []

    page, *_ = told(tmp_path, change)
    assert re.search(
        r"is best with MAP@R 30.0 % of 1 run, on the 1 repetition that both have 1.00 points above "
        r"\w+ of 2 runs; whether that is chance was not tested",
        page,
    )


def test_runs_and_seeds_are_compared_and_an_unfinished_one_is_shown(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "seeds" / f"seed-{seed}", seed=seed, score=0.2 + seed / 100)
    write_run(tmp_path / "single", loss="proxy_anchor", score=0.3)
    write_run(tmp_path / "going", loss="contrastive", finished=False)
    folders = [tmp_path / name for name in ("seeds", "single", "going")]
    page, markdown, _ = report(folders, tmp_path, title="My runs")
    assert "My runs" in page
    assert "4 of 5 units are done" in page
    assert "unfinished: 4 of at most 9 epochs" in page
    assert "| MFCWMS | 21.0 ± 2.5 |" in markdown
    assert "| Contrastive | \N{EN DASH} |" in markdown
    assert "loss.name = proxy_anchor" in page
    assert 'name = "bn_inception"' in page


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    ("options", "evaluated", "has_paper"),
    [
        ({}, "the test set", True),
        ({"finished": False}, "the test set", False),
        ({"on": "held_out"}, "held-out classes", False),
        ({"on": "held_out", "test": {"map_at_r": 0.2}}, "held-out classes", True),
    ],
)
def test_of_single_runs_is_said_what_chose_the_epoch(tmp_path, options, evaluated, has_paper):
    write_run(tmp_path / "run", **options)
    page, markdown, _ = report(tmp_path / "run", tmp_path, figures=True)
    assert f"MAP@R on {evaluated} at each evaluation" in page
    assert ("chosen on held-out training classes" in page) is ("on" in options)
    assert ("| MAP@R | paper |" in markdown) is has_paper
    if "test" in options:
        assert "In the paper the test set chose the epoch." in page


def test_costs_are_means_and_totals_of_the_runs(made):
    _, (_, markdown, _) = made("traditional")
    row = next(line for line in markdown.splitlines() if "| 11.0 | 33.0 |" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["MFCWMS", "3", "11.0", "33.0", "4.00", "1,234", "9.07"]


def test_what_is_needed_to_do_it_again_is_there(made):
    for kind in ("traditional", "reality-check", "classes"):
        _, (page, markdown, _) = made(kind)
        for text in (page, markdown):
            assert f"weiss bench {kind} cub --losses mf_cwms,proxy_anchor" in text
            assert "versions.torch" in text
    _, (page, _, _) = made("traditional")
    assert "[backbone]" in page
    assert "seeds of the runs 0, 1, 2" in page


def looking(calls=None):
    """A function that looks at a run: 12 classes on a circle, of which some are mixed up."""
    labels = np.repeat(np.arange(20), 4)
    random = np.random.default_rng(0)
    centres = random.normal(size=(20, 8))
    spread = np.where(labels < 3, 3.0, 0.1)[:, None]
    embeddings = torch.tensor(centres[labels] + spread * random.normal(size=(80, 8)))
    found = evaluate_retrieval(embeddings, torch.tensor(labels), progress=False)

    def look(folder):
        if calls is not None:
            calls.append(folder)
        return Looked(
            *(embeddings, labels, [f"kind_{c:02d}" for c in range(20)]),
            lambda item: np.full((8, 8, 3), item, dtype=np.uint8),
            *(found.per_query, found.query_index),
        )

    return look


def test_the_best_run_of_the_best_loss_is_looked_at(tmp_path):
    summary = write_comparison(tmp_path / "a")
    calls = []
    page, markdown, latex = report(tmp_path / "a", tmp_path, look=looking(calls))
    values = summary["rows"][1]["scores"]["map_at_r"]["values"]
    best = tmp_path / "a" / summary["rows"][1]["runs"][int(np.argmax(values))]
    assert calls == [best]
    assert "Worst classes" in page
    html = (tmp_path / "page.html").read_text()
    assert html.count('<div class="row">') == 6
    shown = re.findall(r'<div class="row"><p><strong>(.*?)</strong>', html)
    assert set(shown[:3]) == {"kind_00", "kind_01", "kind_02"}
    assert "the 10 worst classes" in markdown
    assert "the 5 best" in markdown
    assert r"kind\_00" in latex


def test_of_single_runs_each_is_looked_at(tmp_path):
    calls, folders = [], [tmp_path / "one", tmp_path / "two"]
    for folder, loss in zip(folders, ("mf_cwms", "proxy_anchor"), strict=True):
        write_run(folder, loss=loss)
    report(folders, tmp_path, look=looking(calls))
    assert calls == folders


@pytest.mark.parametrize("error", [FileNotFoundError("no data at /x"), ValueError("no data at /x")])
@pytest.mark.parametrize("is_image", [False, True])
def test_data_that_cannot_be_read_cost_the_images_and_nothing_else(tmp_path, error, is_image):
    write_run(tmp_path / "run")

    def fail(_):
        raise error

    def look(folder):
        return dataclasses.replace(looking()(folder), read=fail) if is_image else fail(folder)

    page, *_ = report(tmp_path / "run", tmp_path, look=look)
    assert "1 run of 1 loss" in page
    assert "MFCWMS reaches MAP@R 25.0 %" in page
    assert "could not be read: no data at /x" in page
    assert "How to reproduce" in page


@pytest.mark.parametrize("name", ["page.md", "page"])
def test_a_page_must_be_html(tmp_path, name):
    write_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"--out must end in \.html.*Pass .*page\.html"):
        write_report([tmp_path / "run"], tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_run_without_its_network_says_so_and_one_that_has_it_is_preferred(tmp_path):
    summary = write_comparison(tmp_path / "a")
    row, calls = summary["rows"][1], []
    first, second, _ = np.argsort(row["scores"]["map_at_r"]["values"])[::-1]
    runs = [tmp_path / "a" / run for run in row["runs"]]
    (runs[first] / "model.safetensors").unlink()
    report(tmp_path / "a", tmp_path, look=looking(calls))
    assert calls == [runs[second]]
    for run in runs:
        (run / "model.safetensors").unlink(missing_ok=True)
    page, *_ = report(tmp_path / "a", tmp_path, look=looking(calls))
    assert len(calls) == 1
    assert "its folder has no model.safetensors any more" in page


def test_of_many_tests_those_of_the_main_metric_are_shown(tmp_path):
    def many(summary):
        one = summary["tests"][0]
        summary["tests"] = [
            {**one, "metric": metric} for metric in ("map_at_r", "r_precision") for _ in range(12)
        ]

    _, markdown, _ = told(tmp_path, many)
    assert "Tests by other metrics are in summary.json." in markdown
    assert markdown.count("| MAP@R |") >= 12
    assert "| RP | " not in markdown.split("Significance")[1]


def test_a_caption_says_what_chose_the_epoch(tmp_path):
    assert "which also chose the epoch, as in the paper" in told(tmp_path)[0]
    page, *_ = told(tmp_path, selected_on="held-out training classes")
    assert "which also chose the epoch" not in page
    assert "the epoch was chosen on held-out training classes" in page


@pytest.mark.parametrize(
    ("epoch", "changes", "is_said"),
    [(12, {}, True), (9, {}, False), (12, {"train.epochs": 20}, False)],
)
def test_a_caption_says_when_no_run_had_stopped_improving(tmp_path, epoch, changes, is_said):
    def change(summary):
        for row in summary["rows"][:-1]:
            row["scores"]["epoch"] = {"values": [12, epoch], "mean": 12.0}
        summary["rows"][0]["changes"] = changes

    page, *_ = told(tmp_path, change, recipe={"train": {"epochs": 12}})
    assert ("none had stopped improving" in page) is is_said
    assert ("6 runs of 2 losses in 2 versions" in page) is bool(changes)


def test_trials_that_failed_or_were_pruned_are_drawn_as_such(tmp_path, monkeypatch):
    from weiss import figures

    write_comparison(tmp_path / "a", kind="reality-check")
    seen = {}
    monkeypatch.setattr(
        figures, "search_history", lambda trials, path, **more: seen.update(trials=trials, **more)
    )

    def figure(self, name, draw):
        if name.endswith("-search"):
            draw(Path(name))

    monkeypatch.setattr(Document, "figure", figure)
    write_report([tmp_path / "a"], tmp_path / "page.html")
    assert next(iter(seen["trials"].values())) == [0.2, None, 0.23, 0.1]
    assert next(iter(seen["pruned"].values())) == {3}
