"""Reports: every kind in every format, and what is missing, failed or unread is said."""

import dataclasses
import re
import tomllib
from collections import namedtuple
from functools import cache
from html import unescape

import numpy as np
import pytest
import torch
from reporting.builders import KINDS, forget_order, write_comparison, write_run
from reporting.latex import check_latex
from unrendered import leave_unrendered

from weiss import figures
from weiss.evaluation import evaluate_retrieval
from weiss.reporting import Looked, write_report
from weiss.reporting.document import Document
from weiss.reporting.tables import MINUS
from weiss.runs import to_toml

Report = namedtuple("Report", ["page", "markdown", "latex", "html", "figures"])
"""The visible text of a page, the texts of its files, and what draws each figure, by its name."""
HELD_OUT = "held-out training classes"


def report(folders, out, *, draws=False, **options):
    """Write a report; only if asked for, with its figures: drawing is what takes time."""
    folders = folders if isinstance(folders, list) else [folders]
    drawers = {}
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(Document, "figure", lambda _, *figure: drawers.update([figure]))
        written = write_report(folders, out / "page.html", **options)
    assert all(path.is_file() for path in written)
    html, markdown, latex = (path.read_text(encoding="utf-8") for path in written[:3])
    check_latex(latex)
    text = unescape(re.sub(r"<[^>]*>", " ", html[html.index("<body>") :]))
    return Report(re.sub(r"\s+", " ", text), markdown, latex, html, drawers)


def told(folder, change=None, kind="traditional", **options):
    """Write a comparison, changed by a function of its summary, and the report of it."""
    write_comparison(folder / "a", kind, change=change, **options)
    return report(folder / "a", folder)


def caption_of(found, which, folder):
    """Draw a figure of a report and return its caption."""
    (draw,) = (draw for name, draw in found.figures.items() if name.endswith(f"-{which}"))
    return draw(folder / f"{which}.svg")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A function that returns of every kind its folder and its report with figures, made once."""

    @cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        write_comparison(folder / "comparison", kind)
        with pytest.MonkeyPatch.context() as patch:
            if kind != "traditional":  # one whole report is enough: figures have their own tests
                leave_unrendered(patch)
            return folder, report(folder / "comparison", folder, draws=True)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_stands_in_all_three_formats_with_its_figures(made, kind):
    folder, found = made(kind)
    assert f"What does {kind} ask?" in found.page
    assert f"What does {kind} ask?" in found.markdown
    for text in (found.page, found.markdown, found.latex):
        assert "MFCWMS" in text
    tables = found.html.count("<table")
    assert tables == found.latex.count(r"\begin{table}") >= 1
    assert tables == len(re.findall(r"^\| -", found.markdown, flags=re.MULTILINE))
    assert not re.search(r"https?://|<script|<link", found.html)
    # Every figure is vector for screen and paper, and linked.
    files = sorted(path.name for path in (folder / "page-figures").iterdir())
    stems = {name.rsplit(".", 1)[0] for name in files}
    assert stems
    assert files == sorted(f"{stem}{suffix}" for stem in stems for suffix in (".pdf", ".svg"))
    linked = re.findall(r"\]\((page-figures/[^)]+)\)", found.markdown)
    assert sorted(linked) == sorted(f"page-figures/{stem}.svg" for stem in stems)
    assert found.html.count("data:image/svg+xml") == len(stems)


@pytest.mark.parametrize("kind", ["traditional", "reality-check", "classes"])
def test_the_formats_agree_cell_by_cell(made, kind):
    _, found = made(kind)
    pages = [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr(?: class=\"apart\")?>(<th scope=\"row\".*?)</tr>", found.html)
    ]
    lines = [line for line in found.markdown.splitlines() if line.startswith("| ")]
    cells = {
        unescape(re.sub(r"\\(.)", r"\1", cell.strip().replace("*", "")))
        for line in lines
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
    }
    shown = {unescape(cell) for row in pages for cell in row}
    assert shown <= cells
    for cell in shown:
        if re.fullmatch(r"[\d.]+ ± [\d.]+", cell):
            mean, half = cell.split(" ± ")
            forms = (rf"${mean} \pm {half}$", rf"$\mathbf{{{mean}}} \pm {half}$")
            assert any(form in found.latex for form in forms)


def test_the_lead_says_who_is_best_by_how_much_and_whether_that_is_chance(made):
    _, found = made("traditional")
    lead = found.page[: found.page.index("What was found")]
    assert "6 runs of 2 losses (bn_inception, 128 dimensions)." in lead
    best = r"ProxyAnchor is best with MAP@R 2\d\.\d %, \d\.\d\d points above MFCWMS"
    assert re.search(best, lead)
    few = "3 pairs are too few to tell that from chance"
    assert few in lead
    assert re.search(r"The pretrained network has 10\.0 %: training brought 1\d\.\d points\.", lead)
    assert few in found.markdown.split("## ")[0]
    # The tests, with differences in points.
    for text in (found.page, found.markdown):
        assert "\N{MINUS SIGN}1.23 (\N{MINUS SIGN}2.00 to \N{MINUS SIGN}0.40)" in text
    assert r"\mathbf{0.031}" not in found.latex
    assert "some tests have 3 pairs" in found.page


def test_curves_of_a_run_show_what_it_began_with(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "averaged_curves", lambda *_, levels: drawn.append(levels))
    for number, before in enumerate((0.3, 0.4)):
        run = write_run(tmp_path / f"run{number}")
        began = {"start": "pretrained", "before": {"map_at_r": before}}
        run.write_result({**run.result(), **began})
    runs = [tmp_path / "run0", tmp_path / "run1"]
    for folders, expected in ((runs[:1], {"pretrained": 30}), (runs, {"pretrained, highest": 40})):
        caption = caption_of(report(folders, tmp_path), "curves", tmp_path)
        assert caption.endswith("Dashed: before training.")
        assert drawn.pop() == pytest.approx(expected)


def test_what_chance_may_explain_is_not_called_significant(tmp_path):
    found = told(tmp_path, seeds=5)
    assert "is significant after Holm's correction (p = 0.031, 5 pairs)" in found.page
    assert "some tests have" not in found.page
    assert r"\mathbf{0.031}" in found.latex
    found = told(tmp_path, lambda summary: summary["tests"][0].update(corrected=0.2), seeds=5)
    assert "is not significant after Holm's correction (p = 0.200" in found.page
    found = told(tmp_path, tests=[])
    assert "whether that is chance was not tested" in found.page
    assert "Significance" not in found.page


def test_an_incomplete_comparison_says_how_far_it_is(tmp_path):
    def change(summary):
        summary["rows"][1].update(scores={}, failed={"proxy_anchor/seed-1": "out of <memory>"})

    found = told(tmp_path, change, is_complete=False, num_done=7, num_units=12)
    assert "not complete: 7 of 12 units are done" in found.page
    assert "7 of 12 units are done" in found.markdown
    row = next(line for line in found.markdown.splitlines() if line.startswith("| ProxyAnchor"))
    assert row.split("|")[2].strip() == "\N{EN DASH}"
    assert "out of <memory>" in found.page
    assert r"out of \textless{}memory\textgreater{}" in found.latex


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_that_has_just_begun_has_a_page(tmp_path, kind):
    def change(summary):
        for row in summary["rows"]:
            row.update(scores={}, runs=[])
            row.pop("trials", None)

    begun = {"is_complete": False, "num_done": 0, "tests": []}
    write_comparison(tmp_path / "a", kind, change=change, **begun)
    found = report(tmp_path / "a", tmp_path, draws=True)
    assert "no scores yet" in found.page or "no measurements yet" in found.page
    assert r"\multicolumn{0}" not in found.latex
    told(tmp_path, kind=kind, rows=[], **begun)


def test_failed_and_pruned_trials_are_listed_with_their_reasons(made):
    _, found = made("reality-check")
    for text in found[:3]:
        assert text.count("the loss became NaN in fold 2") == 2
        assert text.count("below the median after fold 1") == 2
    assert "beta 50.12, class_lr 0.01" in found.page
    assert "seconds of the search" in found.page


def test_failed_and_pruned_trials_are_drawn_as_such(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        figures, "search_history", lambda *given, **more: seen.append((given, more))
    )
    caption_of(told(tmp_path, kind="reality-check"), "search", tmp_path)
    [((trials, _), more)] = seen
    assert trials["MFCWMS"] == [0.2, None, 0.23, 0.1]
    assert more["pruned"]["MFCWMS"] == {3}


def test_the_same_input_gives_the_same_bytes(tmp_path):
    write_comparison(tmp_path / "a", "fields", losses=("mf_cwms",))
    first, second = (report(tmp_path / "a", tmp_path / name) for name in ("one", "two"))
    assert first[:4] == second[:4]


@pytest.mark.usefixtures("unrendered")
def test_several_comparisons_begin_with_what_each_found_and_their_figures_do_not_meet(tmp_path):
    for name, changes in (("a", {}), ("b", {"data": "cars"}), ("c", {"selected_on": HELD_OUT})):
        write_comparison(tmp_path / name, **changes)
    found = report([tmp_path / name for name in "abc"], tmp_path, draws=True)
    assert "3 comparisons." in found.page
    leads = [match.start() for match in re.finditer("is best with", found.page)]
    assert len(leads) == 3
    assert max(leads) < found.page.index("How to reproduce")
    assert found.page.count("How to reproduce") == 3
    cub = "## The traditional comparison on cub"
    headings = [line for line in found.markdown.splitlines() if line.startswith("## ")]
    assert headings == [f"{cub}, chosen on {HELD_OUT}", cub, cub.replace("cub", "cars")]
    labels = re.findall(r"\\label\{(.*?)\}", found.latex)
    assert len(labels) == len(set(labels)) > 4
    names = {path.name[:2] for path in (tmp_path / "page-figures").iterdir()}
    assert names == {"01", "02", "03"}


def test_rows_with_other_numbers_of_runs_are_compared_on_what_both_have(tmp_path):
    def change(summary):
        for row, values in zip(summary["rows"], ([0.30], [0.29, 0.10]), strict=False):
            row["runs"], row["repetitions"] = row["runs"][: len(values)], list(range(len(values)))
            row["scores"]["map_at_r"] |= {"values": values, "mean": sum(values) / len(values)}

    said = (
        "is best with MAP@R 30.0 % of 1 run, on the 1 repetition that both have 1.00 points above "
        "ProxyAnchor of 2 runs; whether that is chance was not tested"
    )
    assert said in told(tmp_path, change, tests=[]).page


def test_runs_and_seeds_are_compared_and_an_unfinished_one_is_shown(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "seeds" / f"seed-{seed}", seed=seed, score=0.2 + seed / 100)
    write_run(tmp_path / "single", loss="proxy_anchor", score=0.3)
    write_run(tmp_path / "going", loss="contrastive", finished=False)
    folders = [tmp_path / name for name in ("seeds", "single", "going")]
    found = report(folders, tmp_path, title="My runs")
    assert "My runs" in found.page
    assert "4 of 5 units are done" in found.page
    assert "unfinished: 4 of at most 9 epochs" in found.page
    assert "| MFCWMS | 21.0 ± 2.5 |" in found.markdown
    assert "| Contrastive | \N{EN DASH} |" in found.markdown
    assert "loss.name = proxy_anchor" in found.page
    assert 'name = "bn_inception"' in found.page


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
    found = report(tmp_path / "run", tmp_path, draws=True)
    assert f"MAP@R on {evaluated} at each evaluation" in found.page
    assert (f"chosen on {HELD_OUT}" in found.page) is ("on" in options)
    assert ("| MAP@R | paper |" in found.markdown) is has_paper
    if "test" in options:
        assert "In the paper the test set chose the epoch." in found.page


def test_of_a_comparison_is_said_what_chose_the_epoch(tmp_path):
    assert "which also chose the epoch, as in the paper" in told(tmp_path).page
    found = told(tmp_path, selected_on=HELD_OUT)
    assert "which also chose the epoch" not in found.page
    assert f"the epoch was chosen on {HELD_OUT}" in found.page


def test_costs_are_means_and_totals_of_the_runs(made):
    _, found = made("traditional")
    row = next(line for line in found.markdown.splitlines() if "| 11.0 | 33.0 |" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["MFCWMS", "3", "11.0", "33.0", "4.00", "1,234", "9.07"]


@pytest.mark.parametrize("kind", ["traditional", "reality-check", "classes"])
def test_what_is_needed_to_do_it_again_is_there(made, kind):
    _, found = made(kind)
    for text in (found.page, found.markdown):
        assert f"weiss bench {kind} cub --losses mf_cwms,proxy_anchor" in text
        assert "versions.torch" in text
    if kind == "traditional":
        assert "[backbone]" in found.page
        assert "seeds of the runs 0, 1, 2" in found.page


@pytest.fixture(scope="session")
def looked():
    """The evaluation of a run: 20 classes in space, of which the first three are mixed up."""
    labels = np.repeat(np.arange(20), 4)
    random = np.random.default_rng(0)
    spread = np.where(labels < 3, 3.0, 0.1)[:, None]
    centres = random.normal(size=(20, 8))
    embeddings = torch.tensor(centres[labels] + spread * random.normal(size=(80, 8)))
    found = evaluate_retrieval(embeddings, torch.tensor(labels), progress=False)
    return Looked(
        embeddings,
        labels,
        [f"kind_{c:02d}" for c in range(20)],
        lambda item: np.full((8, 8, 3), item, dtype=np.uint8),
        found.per_query,
        found.query_index,
    )


@pytest.fixture
def look(looked):
    """A function that looks at a run, and notes its folder in its list ``calls``."""

    def look(folder):
        look.calls.append(folder)
        return looked

    look.calls = []
    return look


def test_the_best_run_of_the_best_loss_that_has_its_network_is_looked_at(tmp_path, look):
    row = write_comparison(tmp_path / "a")["rows"][1]
    best, second, _ = np.argsort(row["scores"]["map_at_r"]["values"])[::-1]
    runs = [tmp_path / "a" / run for run in row["runs"]]
    found = report(tmp_path / "a", tmp_path, look=look)
    assert "Worst classes" in found.page
    shown = re.findall(r'<div class="row"><p><strong>(.*?)</strong>', found.html)
    assert len(shown) == 6
    assert set(shown[:3]) == {"kind_00", "kind_01", "kind_02"}
    assert "the 10 worst classes" in found.markdown
    assert "the 5 best" in found.markdown
    assert r"kind\_00" in found.latex
    (runs[best] / "model.safetensors").unlink()
    report(tmp_path / "a", tmp_path, look=look)
    assert look.calls == [runs[best], runs[second]]
    for run in runs:
        (run / "model.safetensors").unlink(missing_ok=True)
    found = report(tmp_path / "a", tmp_path, look=look)
    assert "its folder has no model.safetensors any more" in found.page
    assert len(look.calls) == 2


def test_of_single_runs_each_is_looked_at(tmp_path, look):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, loss in zip(folders, ("mf_cwms", "proxy_anchor"), strict=True):
        write_run(folder, loss=loss)
    report(folders, tmp_path, look=look)
    assert look.calls == folders


@pytest.mark.parametrize("error", [FileNotFoundError("no data at /x"), ValueError("no data at /x")])
@pytest.mark.parametrize("is_image", [False, True])
def test_data_that_cannot_be_read_cost_the_images_and_nothing_else(
    tmp_path, looked, error, is_image
):
    write_run(tmp_path / "run")

    def fail(_):
        raise error

    look = (lambda _: dataclasses.replace(looked, read=fail)) if is_image else fail
    found = report(tmp_path / "run", tmp_path, look=look)
    assert "1 run of 1 loss" in found.page
    assert "MFCWMS reaches MAP@R 25.0 %" in found.page
    assert "could not be read: no data at /x" in found.page
    assert "How to reproduce" in found.page


@pytest.mark.parametrize(
    ("name", "better"), [("page.md", "page"), ("page", "page"), (".", "report")]
)
def test_a_page_must_be_html(tmp_path, name, better):
    write_run(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"--out must end in \.html.*Pass .*{better}\.html"):
        write_report([tmp_path / "run"], tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_of_many_tests_those_of_the_main_metric_are_shown(tmp_path):
    def many(summary):
        metrics = ("map_at_r", "r_precision")
        tests = summary["tests"] * 12
        summary["tests"] = [{**test, "metric": metric} for metric in metrics for test in tests]

    markdown = told(tmp_path, many).markdown
    assert "Tests by other metrics are in summary.json." in markdown
    assert markdown.count("| MAP@R |") >= 12
    assert "| RP | " not in markdown.split("Significance")[1]


def test_a_difference_of_best_epochs_is_told_in_epochs_however_many_tests_there_are(tmp_path):
    def many(summary):
        numbers = {"difference": 7.75, "low": -0.4, "high": 15.9}
        epoch = {**summary["tests"][0], "metric": "epoch", **numbers}
        summary["tests"] = [*summary["tests"] * 30, epoch]

    markdown = told(tmp_path, many).markdown.split("Significance")[1]
    (line,) = [line for line in markdown.splitlines() if line.startswith("| best epoch |")]
    assert f"| +7.75 ({MINUS}0.40 to +15.90) |" in line


def test_what_held_out_classes_chose_stands_before_what_the_test_set_chose(tmp_path):
    given = {"a": ("traditional", "test"), "b": ("dimension", HELD_OUT), "c": ("fields", "test")}
    given["d"] = ("reality-check", "test")  # where the epoch is never chosen on the test set
    for name, (kind, chosen) in given.items():
        write_comparison(tmp_path / name, kind, selected_on=chosen)
    found = report([tmp_path / name for name in given], tmp_path)
    headings = re.findall(r"^## (.*)$", found.markdown, re.MULTILINE)
    kinds = ("dimension", "reality", "traditional", "fields")
    at = [next(n for n, h in enumerate(headings) if kind in h.lower()) for kind in kinds]
    assert at == sorted(at)
    assert "chosen on held-out classes come first" in found.page


@pytest.mark.parametrize(
    ("epoch", "changes", "is_said"),
    [(12, {}, True), (9, {}, False), (12, {"train.epochs": 20}, False)],
)
def test_a_caption_says_when_no_run_had_stopped_improving(tmp_path, epoch, changes, is_said):
    def change(summary):
        for row in summary["rows"][:-1]:
            row["scores"]["epoch"] = {"values": [12, epoch], "mean": 12.0}
        summary["rows"][0]["changes"] = changes

    found = told(tmp_path, change, recipe={"train": {"epochs": 12}})
    assert ("none had stopped improving" in found.page) is is_said
    assert ("6 runs of 2 losses in 2 versions" in found.page) is bool(changes)


def test_order_stands_after_the_learning_curves_with_what_it_means(made):
    _, found = made("traditional")
    page, stem = found.page, "01-the-traditional-comparison-on-cub"
    heading = "Order along training"
    assert f"<h3>{heading}</h3>" in found.html
    assert page.index("at each evaluation") < page.index(heading)
    part = found.markdown.split(f"### {heading}")[1].split("### ")[0]
    assert f"](page-figures/{stem}-order.svg)" in part
    for words in (
        *(
            "1 for a class in one point",
            "0 is self-consistent",
            "batches of the epoch (augmented images)",
        ),
        *("median over classes", "mean over those of 3 seeds that reached the epoch"),
    ):
        assert words in page
        assert words in part


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backbone": {"train": "frozen"}}, "(features)"),
        ({"backbone": {"train": "frozen"}, "augment": {"views": 4}}, "(features of random crops)"),
        (
            {"train": {"warmup_on": "features", "warmup_epochs": 2}},
            "(augmented images or features)",
        ),
    ],
)
def test_a_caption_of_order_says_what_it_was_measured_on(tmp_path, settings, said):
    write_comparison(tmp_path / "a", "traditional")
    for path in (tmp_path / "a").rglob("recipe.toml"):
        values = tomllib.loads(path.read_text())
        for section, given in settings.items():
            values[section] = {**values.get(section, {}), **given}
        path.write_text(to_toml(values))
    caption = caption_of(report(tmp_path / "a", tmp_path), "order", tmp_path)
    assert f"the training batches of the epoch {said} as" in caption


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file/page.html", "page.html cannot (File exists). Pass another path."),
        ("/proc/weiss/page.html", "page.html cannot (No such file or directory)."),
        ("folder.html", "folder.html is a folder. Pass "),
        (f"{250 * 'a'}.html", "html cannot (File name too long)."),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_embedded(tmp_path, out, words):
    run = write_run(tmp_path / "run").folder
    (tmp_path / "file").touch()
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ValueError, match="--out must be a file that can be written") as caught:
        write_report([run], tmp_path / out, look=lambda _: pytest.fail("it was looked at"))
    assert words in str(caught.value)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    ("losses", "seeds", "said"),
    [
        (("mf_cwms", "proxy_anchor"), 3, [1, 1, 0, 0]),
        (("proxy_anchor", "ms"), 1, [0, 1, 1, 1]),
        (("ms",), 3, [0, 0, 0, 0]),
    ],
)
def test_a_caption_of_order_speaks_of_the_panels_there_are(tmp_path, losses, seeds, said):
    caption = caption_of(told(tmp_path, losses=losses, seeds=seeds), "order", tmp_path)
    words = ("repulsion reaches", "The residual is", "such as one over pairs", "of 1 seed.")
    assert [each in caption for each in words] == said
    assert "The length of a class mean" in caption


@pytest.mark.usefixtures("unrendered")
def test_a_caption_of_order_counts_the_runs_behind_a_line(tmp_path):
    write_comparison(tmp_path / "a")
    forget_order(tmp_path / "a" / "mf_cwms" / "seed-2")
    caption = caption_of(report(tmp_path / "a", tmp_path), "order", tmp_path)
    assert "over those of 2 to 3 seeds" in caption
    caption = caption_of(told(tmp_path, kind="reality-check", seeds=2), "order", tmp_path)
    assert "over those of 4 runs" in caption


def test_there_is_neither_figure_nor_heading_of_no_order_or_of_too_many_lines(tmp_path):
    write_comparison(tmp_path / "forgot")
    forget_order(tmp_path / "forgot")
    write_comparison(tmp_path / "moved")
    (tmp_path / "moved" / "mf_cwms").rename(tmp_path / "elsewhere")
    (tmp_path / "moved" / "proxy_anchor").rename(tmp_path / "elsewhere too")
    write_comparison(tmp_path / "measured", "classes")
    write_comparison(tmp_path / "many", "beta-delta", losses=("mf_cwms", "ms"), seeds=1)
    for name in ("forgot", "moved", "measured", "many"):
        found = report(tmp_path / name, tmp_path)
        assert "Order along training" not in found.page + found.markdown
        assert not any(name.endswith("-order") for name in found.figures)
