"""A comparison decodes its images once: in one process, and for several beside each other."""

import shlex
import sys

import pytest
from tiny import tiny_recipe

from weiss.comparing import carry_out, reality_check, traditional

QUICK = {"train__epochs": 1, "train__warmup_epochs": 0, "train__batch_size": 8}
NUM_IMAGES = 80
# A worker's command line that writes down whenever it decodes a table.
COUNTING = """
import sys

from weiss.cli import main
from weiss.data import cache

log, _, _, *words = sys.argv[1:]  # LOG -m weiss join-in
real = cache.decode_table


def decode(sink, table, *more):
    with open(log, "a") as file:
        file.write(f"{len(table)}\\n")
    return real(sink, table, *more)


cache.decode_table = decode
sys.argv[1:] = words
main()
"""

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_worker_decodes_once_for_all_its_runs(stripes, tmp_path, decoded):
    plan = traditional(tiny_recipe(stripes, **QUICK), ["mf_cwms"], seeds=2)
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    assert found["num_done"] == found["num_units"] > 2
    assert decoded == [NUM_IMAGES]
    # It does not outlast the comparison.
    carry_out(plan, tmp_path / "again", quiet=True)
    assert decoded == [NUM_IMAGES, NUM_IMAGES]


def test_networks_of_folds_are_measured_on_images_that_are_there(stripes, tmp_path, decoded):
    plan = reality_check(tiny_recipe(stripes, **QUICK), ["ms"], trials=1, repeats=2, folds=2)
    assert carry_out(plan, tmp_path / "bench", quiet=True)["is_complete"]
    assert decoded == [NUM_IMAGES]


@pytest.mark.dist
def test_one_worker_decodes_for_all(stripes, tmp_path, monkeypatch):
    script, log, cache = tmp_path / "counting.py", tmp_path / "log", tmp_path / "cache"
    script.write_text(COUNTING)
    python = tmp_path / "python"
    words = shlex.join([sys.executable, str(script), str(log)])
    python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = traditional(tiny_recipe(stripes, data__cache=cache, **QUICK), ["mf_cwms"], seeds=3)
    found = carry_out(plan, tmp_path / "bench", workers=2, quiet=True)
    assert found["is_complete"]
    assert log.read_text().split() == [str(NUM_IMAGES)]
    # Not in the memory of the first worker only: where the second one finds them.
    assert len(list(cache.glob("images/*/pixels-*.bin"))) == 1
