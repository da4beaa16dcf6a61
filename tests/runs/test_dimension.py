"""Prefixes of an embedding: the run of one of them is a run like any other, and the right one."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_recipe, write_stripes
from typed import refused, said

from weiss.catalogue import Catalogue
from weiss.runs import Run
from weiss.runs.dimension import at_dimension
from weiss.training import evaluate_run, train

PREFIXES = {"backbone__dimensions": [8, 4, 2], "backbone__embedding_size": 8}


@pytest.fixture(scope="module")
def whole(stripes, tmp_path_factory):
    """A finished run with prefixes, measured on held-out classes and on the test set."""
    folder = tmp_path_factory.mktemp("prefixes") / "run"
    changes = {"evaluate__on": "held_out", **PREFIXES}
    train(tiny_recipe(stripes, **changes), folder, quiet=True, pictures=False)
    return folder


@pytest.mark.parametrize("size", [4, 2])
def test_a_prefix_embeds_as_the_whole_cut_and_scaled_to_unit_length(whole, size):
    pixels = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with at_dimension(Run(whole), size) as short:
        cut = short.model().eval()(pixels)
        fields = short.loss().fields
    expected = Run(whole).model().eval()(pixels)[:, :size]
    expected = torch.nn.functional.normalize(expected)
    torch.testing.assert_close(cut, expected, rtol=0, atol=1e-6)
    assert fields.shape[1] == size
    assert not short.folder.exists()


@pytest.mark.parametrize("size", [4, 2])
def test_a_prefix_has_the_metrics_that_training_measured(whole, size):
    result = Run(whole).result()
    with at_dimension(Run(whole), size) as short:
        shown = short.result()
        assert shown["embedding_size"] == size
        for part, kept in (("valid", shown), ("test", shown["test"])):
            found = evaluate_run(short, split=part, device="cpu").summary()
            names = "dimensions" if part == "valid" else "test_dimensions"
            assert found == {name: result[names][str(size)][name] for name in found}
            assert found == {name: kept[name] for name in found}
        assert shown.get("dimensions", {}).keys() == ({"4", "2"} if size == 4 else set())
        assert "gain" not in shown
        assert f"{size} dimensions" in (short.folder / "card.md").read_text()


def test_the_whole_is_the_run_itself_and_nothing_is_copied(whole):
    run = Run(whole)
    for size in (None, 8):
        with at_dimension(run, size) as same:
            assert same is run


def test_a_size_that_was_not_trained_is_refused(whole, finished):
    with pytest.raises(ValueError, match="must be one of 8, 4, 2, which .* trained"):
        at_dimension(Run(whole), 3).__enter__()
    with pytest.raises(ValueError, match="did not train prefixes"):
        at_dimension(Run(finished), 4).__enter__()


def test_evaluate_index_and_export_take_a_prefix(whole, stripes, tmp_path):
    found = json.loads(said("evaluate", whole, "--dimension", 2, "--split", "test", "--json"))
    assert found["map_at_r"] == Run(whole).result()["test_dimensions"]["2"]["map_at_r"]

    index, more = tmp_path / "index", write_stripes(tmp_path / "more", 12, 2)
    said("index", whole, stripes, "--dimension", 4, "--out", index)
    for label in range(10):
        shutil.rmtree(more / f"class{label}")
    said("index", "--add", more, "--out", index)
    catalogue = Catalogue.open(index, device="cpu")
    assert (catalogue.embedding_size, len(catalogue)) == (4, 64)
    picture = more / "class11" / "1.png"
    answer = json.loads(said("search", index, picture, "-k", 1, "--json"))["answers"][0]
    assert answer["results"][0]["name"] == "class11/1.png"

    said("export", whole, "--dimension", 2, "--out", tmp_path / "small.safetensors")
    exported, mine = load_file(tmp_path / "small.safetensors"), Run(whole).model().state_dict()
    last = "head.embedding.weight"
    assert exported[last].equal(mine[last][:2])
    assert all(exported[name].equal(mine[name]) for name in mine if not name.startswith("head.e"))


def test_wrong_sizes_are_refused_and_leave_nothing(whole, stripes, tmp_path):
    out = tmp_path / "out"
    for words in (
        ("index", whole, stripes, "--dimension", 3, "--out", out),
        ("export", whole, "--dimension", 3, "--out", tmp_path / "out.onnx"),
        ("evaluate", whole, "--dimension", 3),
    ):
        assert "--dimension must be one of 8, 4, 2" in refused(*words)
    for sizes, why in (
        ("16,x", "--dimensions must be whole numbers with commas between them"),
        ("8,16", "descend"),
        ("8,0", "at least 1"),
    ):
        assert why in refused("train", stripes, "--dimensions", sizes, "--out", out)
    assert list(tmp_path.iterdir()) == []
