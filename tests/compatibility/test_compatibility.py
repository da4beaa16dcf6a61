"""What version 0.0 wrote still opens: a run, a state, an index, exports and a comparison.

The files beside this one were made by commit a9c18ca, from the stripes of `tests/tiny.py`:

    weiss train stripes --out finished            three epochs, tiny settings
    weiss train stripes --out interrupted         the same with 40 epochs; Ctrl-C after the second
    weiss index finished stripes --out index      (search.json: what it found for two queries)
    weiss export finished --out export.onnx       and export.safetensors
    weiss bench traditional stripes --losses mf_cwms,proxy_anchor --seeds 2 --out comparison

They are never written again. Models of the comparison and its pictures were left out. Its
ledger.sqlite3, in which versions before 0.2 noted who did what, is that of version 0.1.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from compared import when_done
from PIL import Image
from tiny import metrics, tiny_recipe, traces, without_times, write_stripes

from weiss._base.tensor_files import read_tensors
from weiss.catalogue import Catalogue, add_items, remove_items
from weiss.catalogue.networks import network_of_file, network_of_run
from weiss.comparing import carry_out, traditional
from weiss.reporting import write_report
from weiss.runs import Run, evaluate_run, recipe_from
from weiss.training import train

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A folder with copies of everything, and the data, as the old commands saw it."""
    for path in HERE.iterdir():
        if path.suffix != ".py" and path.name != "__pycache__":
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, tmp_path / path.name)
    write_stripes(tmp_path / "stripes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_close(found, expected):
    """Compare metrics that another processor may round differently."""
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_close(found[name], value)
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=0.02, abs=0.02), name
        else:
            assert found[name] == value, name


def test_an_interrupted_run_resumes_to_the_end_that_the_old_version_reached(old, unrendered):
    before = {path.name for path in Path("interrupted/state").iterdir()}
    assert before == {"000000006.safetensors"}
    recipe = recipe_from("interrupted", ["train.epochs=3"])
    unknown = "does not know its recipe and the content of its images"
    with pytest.warns(UserWarning, match=unknown):
        train(recipe, "interrupted", resume=True, quiet=True)
    ours, theirs = traces("interrupted"), traces("finished")
    assert ours["result"].pop("head") == "linear"  # which the old version did not write
    # The first two epochs are the old version's; the third is ours.
    assert ours["metrics"][:2] == theirs["metrics"][:2]
    assert_close(ours["metrics"][2], theirs["metrics"][2])
    assert_close(ours["result"], theirs["result"])
    train(tiny_recipe("stripes"), "anew", quiet=True)
    if (
        traces("anew")["model"] == theirs["model"]
        and metrics("anew")[1]["loss"] == (metrics("finished")[1]["loss"])
    ):
        # This machine computes with the bits of the one that made the files: so must the resumed.
        assert ours == theirs
        last = "state/000000009.safetensors"
        tensors, expected = (
            read_tensors(Path(run, last))[0] for run in ("interrupted", "finished")
        )
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_new_run_writes_what_the_old_version_wrote(old, unrendered):
    train(tiny_recipe("stripes"), "anew", quiet=True)
    # A later version may add files, metrics and facts; it may drop none.
    assert {path.name for path in Path("anew").iterdir()} >= {
        path.name for path in Path("finished").iterdir()
    }
    for line, before in zip(metrics("anew"), metrics("finished"), strict=True):
        assert line.keys() >= before.keys()
    assert Run("anew").result().keys() >= Run("finished").result().keys()
    first = without_times(metrics("finished")[0])
    assert_close({key: metrics("anew")[0][key] for key in first}, first)


def test_a_run_is_evaluated_with_its_own_result(old):
    found = evaluate_run("finished").summary()
    recorded = Run("finished").result()
    for name in ("map_at_r", "precision_at_1", "r_precision"):
        assert found[name] == pytest.approx(recorded[name], abs=0.05)


def test_an_index_finds_what_it_found(old):
    with pytest.warns(UserWarning, match="has no checksum"):
        catalogue = Catalogue.open("index", device="cpu")
    for query in json.loads(Path("search.json").read_text()):
        hits = catalogue.search(catalogue.embed([np.asarray(Image.open(query["image"]))]), 10)[0]
        assert [(hit.item.id, hit.item.name) for hit in hits[:3]] == [
            (number, name) for number, name, _ in query["hits"][:3]
        ]
        similarities = [similarity for _, _, similarity in query["hits"]]
        assert [hit.similarity for hit in hits] == pytest.approx(similarities, abs=1e-4)


def test_an_index_can_be_changed(old):
    with pytest.warns(UserWarning, match="has no checksum"):
        before = len(Catalogue.open("index", device="cpu"))
    removed = remove_items("index", [0], quiet=True)
    added = add_items("index", "stripes", device="cpu", quiet=True)
    assert (removed.num_items, added.num_added, added.num_items) == (before - 1, 1, before)
    catalogue = Catalogue.open("index", device="cpu")
    assert catalogue.search(catalogue.vector(before)[None], 1)[0][0].item.id == before


@pytest.mark.parametrize("name", ["export.onnx", "export.safetensors", "finished"])
def test_an_export_embeds_as_the_index_was_made(old, name):
    is_run = name == "finished"
    network = network_of_run(name, "cpu") if is_run else network_of_file(name, "cpu")
    vectors = np.load(next(Path("index").glob("vectors-*.npy")))
    ours = network.embed_pixels([np.asarray(Image.open("stripes/class0/0.png"))])
    np.testing.assert_allclose(ours[0], vectors[0], atol=1e-4)


def test_a_comparison_reports_its_numbers(old, unrendered):
    write_report([Path("comparison")], old / "page.html")
    text = (old / "page.html").read_text(encoding="utf-8")
    summary = json.loads(Path("comparison/summary.json").read_text())
    for row in summary["rows"]:
        mean = row["scores"]["map_at_r"]["mean"]
        assert f"{100 * mean:.2f}" in text or f"{100 * mean:.1f}" in text


def test_a_comparison_with_a_ledger_continues_from_its_folders_alone(old, unrendered):
    ledger, before = Path("comparison/ledger.sqlite3").read_bytes(), when_done("comparison")
    summary = json.loads(Path("comparison/summary.json").read_text())
    lost = Path("comparison/mf_cwms/seed-1")
    shutil.rmtree(lost)  # which the ledger has as done
    plan = traditional(tiny_recipe("stripes"), ["mf_cwms", "proxy_anchor"], seeds=2)
    found = carry_out(plan, "comparison", quiet=True)
    assert found["is_complete"]
    for ours, theirs in zip(found["rows"], summary["rows"], strict=True):
        assert ours["name"] == theirs["name"]
        scores = [row["scores"]["map_at_r"]["values"] for row in (ours, theirs)]
        if ours["loss"] != "untrained":
            assert scores[0] == pytest.approx(scores[1], abs=0.02)
    after = when_done("comparison")
    again = {path for path in after if after[path] != before.get(path)}
    # The network before training was measured behind a random head then, and is without one now.
    untrained = {path for path in before if "untrained" in path.parts}
    assert again == {lost / "result.json"} | untrained
    assert Path("comparison/ledger.sqlite3").read_bytes() == ledger
