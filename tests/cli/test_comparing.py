"""The commands that compare, as people type them, rightly and wrongly."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tiny import settings, write_stripes
from typed import refused, said, weiss

QUICK = {"train__epochs": 1, "train__warmup_epochs": 0, "train__batch_size": 8}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    return write_stripes(tmp_path_factory.mktemp("data") / "stripes", 20, 4)


def tiny(*words, **changes):
    """The words of a command with the settings of a tiny run."""
    lines = settings(**(QUICK | changes))
    return (*words, *(word for line in lines for word in ("--set", line)))


@pytest.fixture(scope="module")
def bench(stripes, tmp_path_factory, one_thread):
    """A finished bench, as typed; only to be read."""
    out = tmp_path_factory.mktemp("runs") / "bench"
    losses = ["--losses", "mf_cwms, proxy_anchor"]
    words = tiny("bench", "traditional", stripes, *losses, "--seeds", 2, "--out", out)
    return out, said(*words)


def test_a_bench_says_what_it_does_and_what_it_found(bench):
    out, told = bench
    assert "[1/6] untrained/seed-" in told
    assert re.search(r"\[2/6\] .* s, about \d+ \w+ left\)", told)
    assert "MAP@R (%)" in told
    assert "MFCWMS - ProxyAnchor:" in told
    assert "2 pairs are too few to tell" in told
    assert "weiss report" in told
    for name in ("summary.json", "plan.json", "picture.png", "picture.svg", "picture.pdf"):
        assert (out / name).is_file()
    command = json.loads((out / "plan.json").read_text())["command"]
    assert shlex.split(command)[:3] == ["weiss", "bench", "traditional"]


def test_a_dry_run_says_how_much_is_left_and_does_nothing(bench, stripes, tmp_path):
    out, _ = bench
    words = ("bench", "traditional", stripes, "--losses", "mf_cwms,proxy_anchor", "--dry-run")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    told = said(*tiny(*words, "--seeds", 3, "--out", out))
    assert "6 trainings and 3 units without training. 4 trainings are finished." in told
    assert "The others take about" in told
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    told = said(*tiny(*words, "--out", tmp_path / "new"))
    assert "20 trainings" in told
    assert not (tmp_path / "new").exists()


def test_a_changed_recipe_is_refused_with_the_difference(bench, stripes):
    out, _ = bench
    message = refused(*tiny("bench", "traditional", stripes, "--out", out, optim__lr=0.5))
    assert "began with other settings" in message
    assert "optim.lr: 0.01 -> 0.5" in message


@pytest.mark.usefixtures("unrendered")
def test_a_report_of_a_bench_shows_its_worst_classes_unless_told_not_to(bench, tmp_path):
    out, _ = bench
    told = said("report", out, "--out", tmp_path / "with.html")
    page = (tmp_path / "with.html").read_text()
    assert "Worst classes" in page
    assert page.count('class="tile') > 10
    assert f"Wrote {tmp_path / 'with.tex'}" in told
    assert "figures to" in told
    said("report", out, "--out", tmp_path / "without.html", "--no-images")
    assert "Worst classes" not in (tmp_path / "without.html").read_text()


@pytest.mark.usefixtures("unrendered")
def test_a_report_of_a_bench_under_way_shows_all_there_is_now(bench, tmp_path):
    out, page = shutil.copytree(bench[0], tmp_path / "bench"), tmp_path / "page.html"
    shutil.rmtree(out / "proxy_anchor" / "seed-1")
    for has_summary in (True, False):  # which tells that there was more
        if not has_summary:
            (out / "summary.json").unlink()
        said("report", out, "--out", page, "--no-images")
        assert ("5 of 6 units are done" in page.read_text()) != has_summary
    assert not (out / "summary.json").exists()  # a report only reads


@pytest.mark.usefixtures("unrendered")
def test_a_report_can_be_made_anew_where_only_summaries_were_kept(tmp_path):
    kept = Path(__file__).parents[2] / "results" / "glyphs"
    before = {path: path.read_bytes() for path in kept.glob("*/summary.json")}
    folders = [path.parent for path in before]
    assert len(folders) == 9
    said("report", *folders, "--out", tmp_path / "page.html")
    assert {path: path.read_bytes() for path in kept.glob("*/summary.json")} == before
    assert "units are done" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "traditional", "--losses", "mf_cwm"], "Did you mean 'mf_cwms'"),
        (["bench", "traditional", "--losses", ""], "--losses must name at least one loss"),
        (["bench", "traditional", "--seeds", "0"], "--seeds must be a whole number of at least 1"),
        (["bench", "traditional", "nowhere"], "a recipe must be one of"),
        (["bench", "traditional", "--workers", "0"], "--workers must be"),
        (["bench", "traditional", "--cluster", "local"], "--cluster must be auto or ray://HOST"),
        (["bench", "traditional", "--cluster", "auto", "--workers", "2"], "--workers must be left"),
        (["bench", "traditional", "--needs", "gpus=1"], "--needs must come with --cluster"),
        (
            ["bench", "traditional", "--cluster", "auto", "--needs", "gpu=1"],
            "Did you mean 'gpus'",
        ),
        (
            ["bench", "traditional", "--cluster", "auto", "--needs", "gpus=-1"],
            "--needs gpus must be",
        ),
        (
            ["bench", "traditional", "--cluster", "auto", "--needs", "gpus"],
            "--needs must read NAME=NUMBER",
        ),
        (
            ["bench", "traditional", "--cluster", "auto", "--set", "train.device=cuda:1"],
            "train.device must be auto, cpu or cuda",
        ),
        (["bench", "reality-check", "--trials", "0"], "--trials must be a whole number"),
        (["bench", "reality-check", "--folds", "400"], "at least 800 training classes"),
        (["bench", "reality-check", "--sampler", "x"], "--sampler must be one of 'gp', 'tpe'"),
        (["bench", "reality-check", "--spaces", "x"], "must be readable"),
        (["study", "dimensions"], "Did you mean 'dimension'"),
        (["study", "dimension", "--values", "loss.beta=1"], "--values must be"),
        (["study", "dimension", "--values", "nothing"], "--values must read KEY=A,B,C"),
        (["study", "classes", "--seeds", "2"], "--seeds must be left out"),
        (["study", "breakdown", "--losses", "ms"], "--losses must be one of"),
        (["study", "regularisation", "--losses", "ms"], "has no argument 'reg_weight'"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*words)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_without_ray_names_the_extra_and_makes_nothing(stripes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    words = ("bench", "traditional", stripes, "--cluster", "auto", "--out", tmp_path / "a")
    assert "pip install 'weiss[ray]'" in refused(*tiny(*words))
    assert list(tmp_path.iterdir()) == []


def test_studies_are_listed_with_what_they_ask():
    listed = said("study")
    for name in ("dimension", "batch-size", "beta-delta", "regularisation", "classes", "breakdown"):
        assert name in listed
    assert "How many dimensions" in listed


def test_the_helps_say_that_the_same_command_continues():
    for words in (["bench", "traditional"], ["bench", "reality-check"], ["study"]):
        assert "again to continue" in " ".join(said(*words, "--help").split())


def test_a_study_runs_over_its_values_and_draws_its_picture(stripes, tmp_path):
    out = tmp_path / "study"
    values = ["--values", "loss.reg_weight=0,1"]
    said(*tiny("study", "regularisation", stripes, "--losses", "mf_cwms", *values, "--out", out))
    found = json.loads((out / "summary.json").read_text())
    places = [row["at"] for row in found["rows"]]
    assert places == [{}, {"loss.reg_weight": 0}, {"loss.reg_weight": 1}]
    assert found["rows"][0]["title"] == "untrained"
    assert (out / "picture.svg").is_file()


def test_what_fails_for_one_reason_is_told_once(stripes, tmp_path):
    options = ("--losses", "ms,cwms", "--seeds", 2, "--out", tmp_path / "out")
    done = weiss(*tiny("bench", "traditional", stripes, *options, train__batch_size=4000))
    assert done.returncode != 0
    told = done.stderr.partition("every unit must give a result; 6 failed:")[2]
    assert "ms/seed-0, ms/seed-1, cwms/seed-0, cwms/seed-1: ValueError: " in told
    assert told.count("train.batch_size=4000") == 1


def test_every_command_that_lets_a_bench_grow_is_kept(stripes, tmp_path):
    out = tmp_path / "out"
    for seeds in (1, 1, 2):
        options = ("--losses", "ms", "--seeds", seeds, "--out", out)
        said(*tiny("bench", "traditional", stripes, *options))
    lines = json.loads((out / "plan.json").read_text())["command"].splitlines()
    assert [line.partition("--seeds ")[2][0] for line in lines] == ["1", "2"]
    assert json.loads((out / "summary.json").read_text())["command"] == "\n".join(lines)
    assert str(tmp_path) not in "".join(lines)
