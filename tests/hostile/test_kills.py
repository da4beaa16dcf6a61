"""SIGKILL before any change of a file, and at any time: nothing is ever half."""

import json
import multiprocessing
import shutil
import signal
import sys
import time

import psutil
import pytest
from glyph_catalogue import photos
from hostile.harm import Failures, command, count, draws, everything, victim
from tiny import TIMES, begin, settings, traces, wait_until

PLACES, MOMENTS = 16, 6
"""Kills of each command before a change of a file, and after some time."""
PRELOADED = ["weiss.cli.commands", "weiss.catalogue.building", "weiss.training", "torch", "faiss"]


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported everything; none has a thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.fixture
def run_victim(processes, tmp_path):
    """Run a command that changes a folder, until it ends or dies; return its exit code."""

    def run(folder, words, at=-1, seconds=None):
        note = tmp_path / "changes"
        note.unlink(missing_ok=True)
        process = processes.Process(target=victim, args=(folder, at, note, words))
        process.start()
        if seconds is not None:
            wait_until(lambda: note.exists() or not process.is_alive())
            time.sleep(seconds)
            process.kill()
        process.join(120)
        assert process.exitcode is not None, f"{words} hangs"
        run.changes = int(note.read_text()) if note.exists() else 0
        return process.exitcode

    return run


def kills(random, changes, seconds):
    """Draw when to kill: before some of the changes, and after some shares of the time."""
    places = random.sample(range(1, changes + 1), min(PLACES, changes))
    return [{"at": at} for at in sorted(places)] + [
        {"seconds": seconds * random.random()} for _ in range(MOMENTS)
    ]


@pytest.mark.parametrize("how", ["--add", "--remove", "--compact"])
def test_a_killed_change_leaves_the_index_before_or_after(whole_index, tmp_path, run_victim, how):
    more = photos(tmp_path / "more", 9)
    for path in sorted(more.rglob("*.jpg")):
        path.rename(path.with_name(f"new{path.name}"))
    given = {"--add": [more], "--remove": ["class:class1"], "--compact": []}[how]

    def change(folder):
        where = ["--device", "cpu"] if how == "--add" else []
        return ["index", how, *given, "--out", folder, "--quiet", *where]

    start = shutil.copytree(whole_index, tmp_path / "start")
    if how == "--compact":  # what a killed removal has left
        assert run_victim(start, ["index", "--remove", "class:class1", "--out", start], at=40) == -9
    done = shutil.copytree(start, tmp_path / "done")
    begun = time.monotonic()
    assert run_victim(done, change(done)) == 0, f"{change(done)} failed"
    seconds, changes = time.monotonic() - begun, run_victim.changes
    after = everything(done)
    states = {everything(start): "before", after: "after"}
    failures = Failures(f"killed weiss index {how}")
    for kill in kills(draws(how), changes, seconds):
        index = shutil.copytree(start, tmp_path / "index")
        code = run_victim(index, change(index), **kill)
        assert code == -9 or "seconds" in kill, f"{kill} of {changes} did not kill it"
        where = f"{kill}, {changes} changes in all, exit code {code}"
        found = states.get(everything(index))
        failures.must(found is not None, f"{where}: neither the index before nor that after")
        count(failures.attack, f"left as {found}")
        again = command(*change(index))
        is_again = again.kind == "answer" or (found == "after" and again.kind == "refused")
        failures.must(is_again, f"{where}: the same command again: {again}")
        failures.must(everything(index) == after, f"{where}: not the index after, when repeated")
        checked = command("index", "--check", "--out", index)
        failures.must(checked.kind == "answer", f"{where}: --check: {checked}")
        shutil.rmtree(index)
    failures.settle()


def test_a_killed_run_resumes_to_the_same_bits(runs, tmp_path, run_victim):
    truth, out = traces(runs / "finished"), tmp_path / "run"
    start = ["train", runs / "finished", "--out", out, "--quiet"]
    resume = ["train", "--resume", "--out", out, "--quiet"]
    begun = time.monotonic()
    assert run_victim(out, start) == 0
    seconds, changes = time.monotonic() - begun, run_victim.changes
    assert traces(out) == truth
    shutil.rmtree(out)
    failures, random = Failures("killed weiss train"), draws("train")
    for kill in kills(random, changes, seconds):
        code = run_victim(out, start, **kill)
        assert code == -9 or "seconds" in kill, f"{kill} of {changes} did not kill it"
        has_begun = (out / "recipe.toml").exists()
        # Killed while it resumes, too.
        run_victim(out, resume if has_begun else start, at=random.randint(1, changes))
        code = run_victim(out, resume if (out / "recipe.toml").exists() else start)
        held = code == 0 and traces(out) == truth
        failures.must(held, f"{kill}, {changes} changes in all: exit code {code}, other bits")
        shutil.rmtree(out)
    failures.settle()


def bench(data, out):
    """A comparison of four runs by two workers."""
    small = {"train__epochs": 2, "train__checkpoint_seconds": 0}
    said = [word for line in settings(**small) for word in ("--set", line)]
    how = ["--losses", "mf_cwms,ms", "--seeds", "2", "--workers", "2"]
    return [
        sys.executable,
        *("-m", "weiss", "bench", "traditional", data, "--out", out),
        *how,
        *said,
    ]


def scores(out):
    """The table of a comparison without times."""
    rows = json.loads((out / "summary.json").read_text())["rows"]
    return [
        (row["name"], {k: v["values"] for k, v in row["scores"].items() if k not in TIMES})
        for row in rows
    ]


def test_a_killed_comparison_ends_with_the_same_table(runs, tmp_path):
    random, failures = draws("bench"), Failures("killed weiss bench")
    whole, out = tmp_path / "whole", tmp_path / "bench"
    begun = time.monotonic()
    done = begin(bench(runs / "stripes", whole))
    assert done.wait(600) == 0, done.stderr.read()
    seconds = time.monotonic() - begun
    for kill in range(6):
        process = begin(bench(runs / "stripes", out))
        time.sleep(random.uniform(0.3, 0.8) * seconds / 2)
        family = psutil.Process(process.pid).children(recursive=True)
        prey = process if kill % 2 or not family else random.choice(family)
        try:
            prey.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            prey = None
        if prey is process:
            process.wait(60)
            _, left = psutil.wait_procs(family, timeout=10)  # they promise two seconds
            failures.must(not left, f"kill {kill}: {len(left)} workers outlive the command")
            continue
        code = process.wait(600)
        held = code in (0, 1, 2) and b"Traceback" not in process.stderr.read()
        failures.must(held, f"kill {kill}: a worker was killed, and the command ended with {code}")
    final = begin(bench(runs / "stripes", out))
    failures.must(final.wait(600) == 0, f"the last command: {final.stderr.read().decode()}")
    failures.must(scores(out) == scores(whole), "the table is another one")
    failures.settle()
