"""The part of a report about order: there where it was measured, in words and in a figure."""

import re

import pytest
from reporting.builders import write_comparison

from weiss.reporting import write_report
from weiss.reporting.document import Document
from weiss.reporting.reading import read_folders
from weiss.runs import Run

HEADING = "Order along training"


def report(folder, out):
    """Write a report; return page, Markdown and the names of the figures about order."""
    written = write_report([folder], out / "page.html")
    page, markdown = (path.read_text(encoding="utf-8") for path in written[:2])
    return page, markdown, [path.name for path in written if "-order." in path.name]


def rewrite_metrics(run, lines):
    """Write the metrics of a run and, as they have their checksum there, its result."""
    result = run.result()
    run.write_metrics(lines)
    run.write_result(result)


def forget_order(folder):
    """Rewrite every run below a folder as one that measured no order parameters."""
    for path in folder.rglob("metrics.jsonl"):
        run = Run(path.parent)
        lines = [{k: v for k, v in line.items() if k != "order"} for line in run.metrics()]
        rewrite_metrics(run, lines)


@pytest.fixture
def captions(monkeypatch):
    """Captions by the names of figures, of reports that draw none: drawing is what takes time."""
    from weiss import figures

    monkeypatch.setattr(figures, "averaged_order", lambda runs, path: None)
    found = {}

    def figure(self, name, draw):
        if name.endswith("-order"):
            found[name] = draw(self.figures / f"{name}.svg")

    monkeypatch.setattr(Document, "figure", figure)
    return found


@pytest.mark.usefixtures("unrendered")
def test_order_stands_after_the_learning_curves_in_page_markdown_and_files(tmp_path):
    write_comparison(tmp_path / "a", losses=("mf_cwms", "ms"))
    page, markdown, files = report(tmp_path / "a", tmp_path)
    stem = "01-the-traditional-comparison-on-cub"
    assert files == [f"{stem}-order.svg", f"{stem}-order.pdf"]
    assert all((tmp_path / "page-figures" / name).stat().st_size for name in files)
    assert f"<h3>{HEADING}</h3>" in page
    assert page.index("at each evaluation") < page.index(HEADING)
    part = markdown.split(f"### {HEADING}")[1].split("### ")[0]
    assert f"](page-figures/{stem}-order.svg)" in part
    assert markdown.index(f"{stem}-curves.svg") < markdown.index(f"{stem}-order.svg")
    for text in (page, part):
        words = re.sub(r"<[^>]*>|\\", "", text)
        assert "1 for a class in one point" in words
        assert "0 is self-consistent" in words
        assert "augmented training batches" in words
        assert "median over classes" in words
        assert "mean over those of 3 seeds that reached the epoch" in words


def test_a_caption_speaks_of_the_panels_there_are_and_no_others(tmp_path, captions):
    write_comparison(tmp_path / "a", losses=("mf_cwms", "proxy_anchor"))
    write_comparison(tmp_path / "b", losses=("proxy_anchor", "ms"), seeds=1)
    write_comparison(tmp_path / "c", losses=("ms",))
    fields, proxies, pairs = "repulsion reaches", "The residual is", "such as one over pairs"
    for name, said in (("a", [1, 1, 0]), ("b", [0, 1, 1]), ("c", [0, 0, 0])):
        report(tmp_path / name, tmp_path)
        [caption] = captions.values()
        assert [words in caption for words in (fields, proxies, pairs)] == said
        assert ("Each line is of 1 seed." in caption) == (name == "b")
        assert "The length of a class mean" in caption


def test_a_caption_counts_the_runs_behind_a_line(tmp_path, captions):
    write_comparison(tmp_path / "a")
    forget_order(tmp_path / "a" / "mf_cwms" / "seed-2")
    report(tmp_path / "a", tmp_path)
    write_comparison(tmp_path / "b", "reality-check", seeds=2)
    report(tmp_path / "b", tmp_path)
    some, folds = captions.values()
    assert "over those of 2 to 3 seeds" in some
    assert "over those of 4 runs" in folds


def test_there_is_neither_figure_nor_heading_of_nothing_or_of_too_many_lines(tmp_path, captions):
    write_comparison(tmp_path / "forgot")
    forget_order(tmp_path / "forgot")
    write_comparison(tmp_path / "whole")
    (tmp_path / "alone").mkdir()
    (tmp_path / "whole" / "summary.json").rename(tmp_path / "alone" / "summary.json")
    write_comparison(tmp_path / "measured", "classes")
    write_comparison(tmp_path / "many", "beta-delta", losses=("mf_cwms", "ms"), seeds=1)
    for name in ("forgot", "alone", "measured", "many"):
        page, markdown, _ = report(tmp_path / name, tmp_path)
        assert HEADING not in page + markdown
    assert not captions


def test_metrics_are_those_of_runs_that_have_ended_an_epoch(tmp_path):
    write_comparison(tmp_path / "a")
    for seed in range(3):
        rewrite_metrics(Run(tmp_path / "a" / "proxy_anchor" / f"seed-{seed}"), [])
    rewrite_metrics(Run(tmp_path / "a" / "mf_cwms" / "seed-1"), [])
    [comparison] = read_folders([tmp_path / "a"])
    found = comparison.metrics()
    assert list(found) == ["MFCWMS"]
    assert [len(lines) for lines in found["MFCWMS"]] == [4, 4]
