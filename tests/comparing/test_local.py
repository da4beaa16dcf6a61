"""Several processes on one machine share a comparison: real runs, some of them killed."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from compared import CHECK, QUICK, bench, small_check, summary_of, table, when_done
from tiny import begin, tiny_recipe, wait_until

from weiss.comparing import carry_out, local, traditional, units

NUM_IMAGES = 80
# What workers do besides: write down whenever they decode all images; hang in the first training,
# or die in every one of a seed.
COUNTING = """
decode_table = cache.decode_table


def decode(sink, table, *more):
    with open(note + ".decoded", "a") as file:
        file.write(f"{len(table)}\\n")
    return decode_table(sink, table, *more)


cache.decode_table = decode
"""
HANGING = """
real = units.train


def train(recipe, folder, **options):
    try:
        open(note + ".first", "x").close()  # only one of them
    except FileExistsError:
        return real(recipe, folder, **options)
    with open(note + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(note + ".new", note + ".hangs")
    time.sleep(600)


units.train = train
"""
DYING = """
real = units.train


def train(recipe, folder, **options):
    if folder.name == "seed-1":
        with open(note, "a") as file:
            file.write(f"{os.getpid()}\\n")
        os.kill(os.getpid(), 9)
    return real(recipe, folder, **options)


units.train = train
"""
NOTING = """
real = units.train


def train(recipe, folder, **options):
    with open(note, "a") as file:
        file.write(f"{folder.relative_to(out)}\\n")
    return real(recipe, folder, **options)


units.train = train
"""
IMPORTS = """
import os, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from weiss.cli import main
from weiss.comparing import units
from weiss.comparing.worker import serve
from weiss.data import cache
"""

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.dist]


@pytest.fixture
def changed_workers(tmp_path, monkeypatch):
    """Let worker processes first run some code, which knows a file to note something in."""

    def change(code):
        note, script, python = (tmp_path / name for name in ("note", "worker.py", "python"))
        # NOTE -m weiss._base.parent PID weiss.comparing.worker PIPE OUT
        arguments = "note, _, _, _, _, pipe, out = sys.argv[1:]\n"
        script.write_text(f"{IMPORTS}{arguments}{code}\nserve(Connection(int(pipe)), Path(out))\n")
        words = shlex.join([sys.executable, str(script), str(note)])
        python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        return note

    return change


def test_two_workers_of_which_one_is_killed_give_the_table_of_one_and_decode_once(
    undisturbed, stripes, tmp_path, changed_workers, capfd
):
    note, cache, out = changed_workers(COUNTING + HANGING), tmp_path / "cache", tmp_path / "bench"
    hangs, decoded = note.with_name("note.hangs"), note.with_name("note.decoded")

    def kill():
        wait_until(hangs.exists)
        os.kill(int(hangs.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    plan = small_check(tiny_recipe(stripes, data__cache=cache, **QUICK))
    assert table(carry_out(plan, out, workers=2)) == table(undisturbed[1])
    killer.join()
    said = capfd.readouterr().out.splitlines()
    death = [line for line in said if "was killed (signal 9)" in line]
    assert len(death) == 1
    # Whichever of the two folds began to train first.
    assert re.search(r"ms/trial-000/fold-[01] is begun again by another$", death[0])
    said.remove(death[0])
    assert [line.partition(" ")[0] for line in said] == [f"[{n}/18]" for n in range(1, 19)]
    assert len({line.split(" ")[1].rstrip(":") for line in said}) == 18
    assert decoded.read_text().split() == [str(NUM_IMAGES)]
    # Not in the memory of the first worker only: where the others find them.
    assert len(list(cache.glob("images/*/pixels-*.bin"))) == 1


def test_a_unit_that_kills_every_worker_fails_and_the_others_are_done(
    recipe, tmp_path, changed_workers, monkeypatch
):
    died, out = changed_workers(DYING), tmp_path / "bench"
    monkeypatch.setattr(local, "TRIES", 2)
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=3), out, workers=2, quiet=True)
    assert len(died.read_text().split()) == 2
    why = "its worker was killed (signal 9), as 1 others before"
    assert found["rows"][1]["failed"] == {"mf_cwms/seed-1": why}
    assert found["num_done"] == 5


@pytest.fixture
def fake_workers(tmp_path, monkeypatch):
    """Let worker processes be a line of shell."""

    def replace(line):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return replace


def test_a_worker_that_cannot_start_is_an_error(recipe, tmp_path, fake_workers):
    fake_workers("exit 3")
    with pytest.raises(RuntimeError, match="a worker process must start; worker . ended with code"):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path / "bench", workers=2)


@pytest.mark.parametrize(
    ("gpus", "visible", "used"),
    [(2, "5,7", ["5", "5", "7"]), (2, "", ["0", "0", "1"]), (0, "3", ["3", "3", "3"])],
)
def test_workers_take_turns_among_the_gpus_and_stop_with_their_command(
    recipe, tmp_path, fake_workers, monkeypatch, interrupted, gpus, visible, used
):
    fake_workers(f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/worker-$$; exec sleep 600")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def devices():
        return sorted(path.read_text().strip() for path in tmp_path.glob("worker-*"))

    with interrupted(lambda: len(devices()) == 3 and "" not in devices()):
        plan = traditional(recipe, ["mf_cwms"], seeds=2)
        carry_out(plan, tmp_path / "bench", workers=3, quiet=True)
    assert devices() == used
    assert not any(psutil.pid_exists(int(p.name[7:])) for p in tmp_path.glob("worker-*"))


def results(out):
    return list(out.rglob("result.json"))


def test_a_killed_command_takes_its_workers_with_it_and_the_next_one_continues(
    undisturbed, stripes, recipe, tmp_path
):
    out = tmp_path / "bench"
    command = bench(stripes, out, *CHECK, "--workers", 2, protocol="reality-check")
    killed = begin(command)
    wait_until(lambda: len(results(out)) > 5 or killed.poll() is not None)
    family = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    assert not psutil.wait_procs(family, timeout=60)[1]
    before = when_done(out)
    assert 5 < len(before) < 18
    assert table(carry_out(small_check(recipe), out, quiet=True)) == table(undisturbed[1])
    assert {path: when for path, when in when_done(out).items() if path in before} == before


def test_two_commands_in_one_folder_share_the_work(
    undisturbed, stripes, recipe, tmp_path, monkeypatch
):
    out, note, script = (tmp_path / name for name in ("bench", "note", "command.py"))
    _, _, _, *words = bench(stripes, out, *CHECK, protocol="reality-check")
    script.write_text(f"{IMPORTS}note, out = {str(note)!r}, {str(out)!r}\n{NOTING}\nmain()\n")
    other = begin([sys.executable, str(script), *words], stderr=subprocess.STDOUT)
    # Both train: we join when the other has begun to, which may be its only one if it is slow.
    wait_until(lambda: note.exists() or other.poll() is not None)
    ours, real = [], units.train

    def train(recipe, folder, **options):
        ours.append(str(folder.relative_to(out)))
        return real(recipe, folder, **options)

    monkeypatch.setattr(units, "train", train)
    found = carry_out(small_check(recipe), out, quiet=True)
    said = other.communicate(timeout=240)[0].decode()
    assert other.returncode == 0, said
    assert table(found) == table(summary_of(out)) == table(undisturbed[1])
    trained = [*ours, *note.read_text().split()]
    assert len(trained) == len(set(trained)) == 8  # two trials and two repeats of two folds


def killed_until_done(command, seed):
    """Kill it and its workers at random and start again; return how often, at most six times."""
    chance, kills = random.Random(seed), 0
    while True:
        process = begin(command, stderr=subprocess.STDOUT, start_new_session=True)
        # With several workers it takes seconds until any of them begins.
        moment = None if kills == 6 else 3 + 1.5 * seed + 4 * chance.random()
        try:
            said = process.communicate(timeout=moment)[0].decode()
        except subprocess.TimeoutExpired:
            everybody = [*psutil.Process(process.pid).children(recursive=True)]
            for each in chance.sample(everybody, len(everybody)):
                each.kill()
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, said
        return kills


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_random_and_restarted_the_table_is_the_same(
    undisturbed, stripes, tmp_path, workers
):
    out = tmp_path / "bench"
    options = [*CHECK, "--workers", workers]
    command = bench(stripes, out, *options, protocol="reality-check", train__checkpoint_seconds=0)
    killed_until_done(command, workers)
    assert table(summary_of(out)) == table(undisturbed[1])
