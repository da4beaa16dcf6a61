"""Damaged files of an index, a run or an export: the answer of whole files, or a clear refusal."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from hostile.harm import (
    Failures,
    Outcome,
    called,
    command,
    damaged,
    damages,
    everything,
    files_of,
    outcome_of,
    put,
    stem,
)
from tiny import traces, weiss

from weiss._base.tensor_files import DIGEST
from weiss.catalogue import index_folder
from weiss.catalogue.networks import network_of_file

UNCHECKED = ("card.md", "skipped.txt", ".written")
"""Files of an index folder for people, and the note: no answer comes from them."""
EDITED = "recipe.toml"
"""Of a run, and text that people may edit: another value that may stand there is used."""


@pytest.mark.parametrize("size", ["small files", "large files"])
def test_a_damaged_index_gives_the_same_answer_or_a_refusal(index, pictures, monkeypatch, size):
    number = 100
    if size == "large files":  # too large to be hashed when the index is opened
        monkeypatch.setattr(index_folder, "SMALL", 0)
        number = 20
    query = ["search", index, pictures / "U+0041" / "3.png", "-k", 5, "--json", "--device", "cpu"]
    check = ["index", "--check", "--out", index]
    asked = {
        "open": lambda: called(partial(everything, index, verify=size == "large files")),
        "search": lambda: command(*query),
        "check": lambda: command(*check),
    }
    truth = {name: ask().whole() for name, ask in asked.items()}
    failures = Failures(f"index, {size}")
    for turn, (path, where) in enumerate(damaged(index, size, number)):
        for name in ("open", "check") if turn % 5 else asked:
            covered = name == "check" and path.name not in UNCHECKED
            outcome = asked[name]()
            failures.judge(outcome, truth[name], f"{name}, {where}", must_refuse=covered)
    failures.settle()


def test_a_damaged_run_is_evaluated_as_it_was_or_refused(runs, tmp_path):
    run = shutil.copytree(runs / "finished", tmp_path / "run")
    ask = ["evaluate", run, "--json", "--device", "cpu"]
    truth = command(*ask).whole()
    failures = Failures("run, evaluate")
    for path, where in damaged(run, "evaluate", 150):
        failures.judge(command(*ask), truth, where, may_change=path.name == EDITED)
    failures.settle()


def test_a_damaged_run_is_reported_as_it_was_or_refused(runs, tmp_path, undrawn, unrendered):
    run = shutil.copytree(runs / "finished", tmp_path / "run")
    page = tmp_path / "report" / "page.html"

    def report():
        outcome = command("report", run, "--out", page)
        if outcome.kind != "answer":
            return outcome
        shown = page.with_suffix(".md").read_text()
        if named := [line for line in shown.splitlines() if "could not be read" in line]:
            return Outcome("refused", words=named[0])  # the page has no pictures and says why
        return Outcome("answer", page.read_text() + shown)

    truth = report().whole()
    failures = Failures("run, report")
    for path, where in damaged(run, "report", 60):
        failures.judge(report(), truth, where, may_change=path.name == EDITED)
    failures.settle()


@pytest.mark.parametrize("name", ["killed", "finished"])
def test_a_damaged_run_resumes_to_the_same_bits_or_is_refused(runs, tmp_path, undrawn, name):
    truth = traces(runs / "finished")
    failures = Failures(f"run, resume {name}")
    for path in files_of(runs / name):
        place = path.relative_to(runs / name)
        times = range(75 if path.suffix in (".json", ".toml", ".jsonl") else 25)
        for what, changed in damages(path.read_bytes(), f"resume {place}", times):
            copy = shutil.copytree(runs / name, tmp_path / "run")
            put(copy / place, changed)
            outcome = command("train", "--resume", "--out", copy, "--quiet")
            if outcome.kind == "answer":
                outcome = called(traces, copy)
            failures.judge(outcome, truth, f"{place}, {what}", may_change=path.name == EDITED)
            shutil.rmtree(copy)
    failures.settle()


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_a_damaged_export_embeds_as_it_did_or_is_refused(exported, tmp_path, kind):
    path = tmp_path / f"model.{kind}"
    content = (exported / kind / path.name).read_bytes()
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)

    def embed():
        network = network_of_file(path, "cpu", **({"threads": 1} if kind == "onnx" else {}))
        return network.embed_pixels([picture]).tobytes(), json.dumps(network.facts, sort_keys=True)

    path.write_bytes(content)
    truth = called(embed).whole()
    failures = Failures(f"export, {kind}")
    for _, where in damaged(tmp_path, kind, 1500):
        failures.judge(called(embed), truth, where)
    for at in range(place := content.index(DIGEST.encode()), place + len(DIGEST)):
        put(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        where = f"byte {at - place} of the name of the checksum"
        failures.judge(called(embed), truth, where, must_refuse=True)
    failures.settle()


def test_the_command_line_itself_refuses_in_one_message(whole_index, runs, pictures, tmp_path):
    index = shutil.copytree(whole_index, tmp_path / "index")
    run = shutil.copytree(runs / "finished", tmp_path / "run")
    asked = {
        index: ["search", index, pictures / "U+0041" / "3.png", "--json", "--device", "cpu"],
        run: ["evaluate", run, "--json", "--device", "cpu"],
    }
    failures = Failures("command line")
    for folder, words in asked.items():
        truth = outcome_of(weiss(*words)).whole()
        for path in files_of(folder):
            content = path.read_bytes()
            for what, changed in damages(content, f"line {stem(path)}", (0, 7)):
                put(path, changed)
                done = weiss(*words)
                put(path, content)
                where = f"{path.relative_to(folder)}, {what}"
                failures.judge(outcome_of(done), truth, where, may_change=path.name == EDITED)
                assert "Traceback" not in done.stderr, where
    failures.settle()
