"""Exported files: the run's embeddings, one file, nothing of this machine, and a card."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from shipped import NAMES, exports, random_run

from weiss._base.images import decode
from weiss._base.tensor_files import read_tensors
from weiss.backbones import BACKBONES
from weiss.catalogue import export
from weiss.catalogue.export import Exported, export_run
from weiss.catalogue.networks import Preprocessing, fingerprint_of, network_of_file, network_of_run

SCRATCH = "backbone.weights=scratch"
HERE = Path(export.__file__).resolve().parent


def existing(suffix):
    """Return an export that `make_exports` has written."""
    path = exports() / suffix / f"model.{suffix}"
    return Exported(path, path.with_name(f"{path.name}.md"), 0.0, network_of_file(path).facts)


@pytest.fixture(scope="module")
def exported():
    return existing("onnx")


@pytest.fixture(scope="module")
def tensors():
    return existing("safetensors")


@pytest.fixture
def graph(exported, monkeypatch):
    """The graph of the export, which further exports take instead of tracing the network again."""
    graph = onnx.load(exported.path)
    monkeypatch.setattr(export, "_graph", lambda model, shape: graph)
    return graph


def difference(run, path, batch, seed=1):
    """Return how far plain onnxruntime is from the run's network, by torch."""
    model = run.model()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    assert images.name == "images"
    assert images.type == "tensor(float)"
    shape = (batch, *images.shape[1:])
    given = np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)
    (found,) = session.run(["embeddings"], {"images": given})
    with torch.no_grad():
        expected = model(torch.from_numpy(given)).numpy()
    assert found.shape == expected.shape
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    return np.abs(found - expected).max()


@pytest.mark.parametrize("batch", [1, 2, 13])
def test_an_onnx_file_takes_batches_of_any_size(run, exported, batch):
    assert difference(run, exported.path, batch) < 1e-5


def test_the_graph_is_valid_and_of_one_known_set_of_operators(exported):
    model = onnx.load(exported.path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", export.OPSET)]
    assert not any(tensor.external_data for tensor in model.graph.initializer)


def test_an_export_is_one_file_and_its_card(exported, tensors):
    for each, suffix in ((exported, "onnx"), (tensors, "safetensors")):
        names = sorted(path.name for path in each.path.parent.iterdir())
        assert names == [f"model.{suffix}", f"model.{suffix}.md"]
        assert each.card == each.path.with_name(f"model.{suffix}.md")


@pytest.mark.parametrize(
    "settings",
    [
        ("backbone.pooling=gem", "backbone.head=relu", "backbone.channels=3"),
        ("backbone.pooling=avg+max", "backbone.widths=[8,8]", "evaluate.size=24"),
    ],
)
def test_poolings_heads_and_sizes_are_in_the_graph(settings, tmp_path):
    run = random_run(tmp_path / "run", "glyphs", *settings)
    path = export_run(run, tmp_path / "model.onnx").path
    assert difference(run, path, 3) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in ("small", "features")])
def test_every_backbone_can_be_exported(name, tmp_path):
    settings = (f"backbone.name={name}", SCRATCH, "backbone.embedding_size=64")
    run = random_run(tmp_path / "run", "cub", *settings)
    for suffix in ("onnx", "safetensors"):
        exported = export_run(run, tmp_path / f"model.{suffix}")
        assert exported.difference < 2e-5
        assert network_of_file(exported.path).fingerprint == fingerprint_of(
            run.model().state_dict()
        )
    for batch in (1, 2, 7):
        assert difference(run, tmp_path / "model.onnx", batch) < 2e-5


@pytest.mark.slow
@pytest.mark.usefixtures("torchvision")
def test_a_transformer_of_timm_can_be_exported(tmp_path):
    settings = ("backbone.name=timm:vit_tiny_patch16_224", SCRATCH)
    run = random_run(tmp_path / "run", "cub", *settings, "backbone.pooling=own")
    path = export_run(run, tmp_path / "model.onnx").path
    assert difference(run, path, 3) < 1e-4


def test_metadata_say_what_is_needed_without_weiss(exported, run):
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    preprocessing, scores = json.loads(said["preprocessing"]), json.loads(said["scores"])
    wanted = {"channels": 3, "colours": "red, green, blue", "resize": 32, "size": 32}
    assert preprocessing.items() >= wanted.items()
    assert "bilinear" in preprocessing["interpolation"]
    assert "0 to 255" in preprocessing["values"]
    fingerprint, num_classes = fingerprint_of(run.model().state_dict()), run.result()["num_classes"]
    wanted = {"weiss_format": "1", "embedding_size": "16", "distance": "cosine", "data": "data"}
    wanted |= {"fingerprint": fingerprint, "num_classes": str(num_classes)}
    assert said.items() >= wanted.items()
    assert "fold 1 of 5 of the training classes was held out" in said["protocol"]
    assert scores["map_at_r"] == run.result()["map_at_r"]
    assert scores["test"]["map_at_r"] == run.result()["test"]["map_at_r"]


def test_nothing_of_this_machine_is_in_what_is_shipped(exported, tensors, run):
    places = [run.folder.parent, exported.path.parent, HERE, Path.home(), Path(sys.prefix)]
    for path in (exported.path, tensors.path, exported.card, tensors.card):
        content = path.read_bytes()
        for place in places:
            assert str(place).encode() not in content, (path.name, place)
        assert b".py" not in content.replace(b"```python", b"")


def test_folders_in_settings_are_left_out(tmp_path):
    run = random_run(tmp_path / "run", "cub", "backbone.name=resnet18", SCRATCH)
    recipe = (run.folder / "recipe.toml").read_text()
    changed = recipe.replace('weights = "scratch"', f'weights = "{tmp_path}/secret/start.pth"')
    assert changed != recipe
    (run.folder / "recipe.toml").write_text(changed)
    made = export_run(run, tmp_path / "out" / "model.safetensors", check=False)
    assert made.difference is None
    assert made.facts["starts_from"] == "start.pth"
    assert b"secret" not in made.path.read_bytes()
    assert "the weights it started from (start.pth)" in made.card.read_text()


def code_without_weiss():
    """Return the block of the documentation that needs onnxruntime alone."""
    page = (Path(__file__).parents[2] / "docs" / "shipping.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (each for each in blocks if "def embed(file, path)" in each)
    return block


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P", "I;16", "transparent grey"])
def test_the_documented_preparation_is_ours_for_transparent_and_deep_pictures(
    exported, run, tmp_path, kind
):
    random = np.random.default_rng(3)
    colours = Image.fromarray(random.integers(0, 256, (8, 12, 4), dtype=np.uint8), "RGBA")
    image = colours.resize((300, 200))
    if kind == "I;16":
        image = Image.fromarray(random.integers(0, 65536, (90, 120), dtype=np.uint16))
    elif kind == "transparent grey":
        image = image.convert("L")
        image.info["transparency"] = 7
    elif kind == "P":
        image = image.quantize(16)
    else:
        image = image.convert(kind)
    image.save(tmp_path / "a.png")
    space = {}
    exec(code_without_weiss(), space)
    for channels in (1, 3):
        wanted = {**exported.facts["preprocessing"], "channels": channels}
        found = space["prepare"](tmp_path / "a.png", wanted)
        shape = Preprocessing.from_dict(wanted)
        expected = shape.prepare([decode(tmp_path / "a.png", channels)])
        assert np.abs(found - expected).max() <= 1.01
    pixels = decode(tmp_path / "a.png")
    found = space["embed"](exported.path, tmp_path / "a.png")
    assert np.abs(found - network_of_run(run).embed_pixels([pixels])).max() < 5e-3


def test_an_onnx_file_needs_neither_torch_nor_weiss(exported, run, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(pixels).resize((420, 300)))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    code = f"""{code_without_weiss()}
import sys
np.save(sys.argv[3], embed(sys.argv[1], sys.argv[2]))
print({{"torch", "weiss"}} & set(sys.modules))
"""
    words = [exported.path, tmp_path / "a.png", tmp_path / "out.npy"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr
    found, expected = np.load(tmp_path / "out.npy"), network_of_run(run).embed_pixels([pixels])
    assert np.abs(found - expected).max() < 5e-3


def test_a_safetensors_export_is_read_by_the_plain_library(tensors, run, tmp_path):
    plain = load_file(tensors.path)
    state = run.model().state_dict()
    assert plain.keys() == state.keys()
    assert all(torch.equal(plain[name], state[name]) for name in state)
    with safe_open(tensors.path, "pt") as file:
        said = file.metadata()
    assert said["fingerprint"] == fingerprint_of(state)
    assert json.loads(said["backbone"])["name"] == "small"
    assert export_run(run, tmp_path / "model.safetensors").difference == 0


def test_fields_come_along_if_asked_for(run, tensors, tmp_path):
    made = export_run(run, tmp_path / "with.safetensors", fields=True)
    found, said = read_tensors(made.path, is_ours=True)
    assert torch.equal(found["loss.fields"], run.loss().fields)
    assert len(json.loads(said["class_names"])) == len(found["loss.fields"])
    network = network_of_file(made.path)
    assert network.fingerprint == tensors.facts["fingerprint"]
    with pytest.raises(ValueError, match="left out for an ONNX file"):
        export_run(run, tmp_path / "with.onnx", fields=True)
    plain = random_run(tmp_path / "run", "glyphs", "loss.name=contrastive")
    with pytest.raises(ValueError, match="must have mean fields.*'contrastive' has none"):
        export_run(plain, tmp_path / "x.safetensors", fields=True)
    assert not (tmp_path / "x.safetensors").exists()


def test_an_onnx_graph_of_another_network_is_not_left_behind(run, exported, tmp_path, graph):
    (bias,) = (each for each in graph.graph.initializer if each.name == "head.embedding.bias")
    bias.raw_data = np.full(16, 0.01, np.float32).tobytes()
    old = shutil.copy(exported.path, tmp_path / "model.onnx").read_bytes()
    message = "must be those of the run's network to 0.0001; they are off by .* it was not written"
    with pytest.raises(ValueError, match=message):
        export_run(run, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_bytes() == old


def test_the_card_names_data_protocol_scores_and_how_to_load(exported, run):
    card = exported.card.read_text()
    result = run.result()
    row = f"| MAP@R | {100 * result['map_at_r']:.2f} | {100 * result['test']['map_at_r']:.2f} |"
    for said in (
        row,
        "held-out training classes",
        "Data: data;",
        f"{result['num_classes']} classes",
        "was held out too and chose the epoch",
        "central 32 x 32",
        "License of this file: to be filled in",
        "weiss index",
        'network_of_file("model.onnx")',
        'onnxruntime.InferenceSession("model.onnx")',
        exported.facts["fingerprint"],
    ):
        assert said in card, said


def test_a_margin_becomes_a_hint_for_the_threshold(tmp_path):
    settings = ("loss.name=mf_contrastive", "loss.neg_margin=0.4")
    run = random_run(tmp_path / "run", "glyphs", *settings)
    card = export_run(run, tmp_path / "model.safetensors").card.read_text()
    assert "until their cosine fell below 0.6." in card


def test_a_run_that_has_not_ended_can_be_exported(tmp_path):
    run = random_run(tmp_path / "run", "glyphs")
    made = export_run(run, tmp_path / "model.safetensors")
    assert made.facts["num_classes"] == len(NAMES)
    assert made.facts["epoch"] == 4
    assert "not come to its end" in made.facts["scores"]["measured_on"]
    assert "Nothing was measured" in made.card.read_text()


def test_what_cannot_be_exported_says_why(run, tmp_path):
    with pytest.raises(ValueError, match="end in .onnx or .safetensors.*'model.pt'"):
        export_run(run, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="got 'model.onnx' for format='safetensors'"):
        export_run(run, tmp_path / "model.onnx", format="safetensors")
    with pytest.raises(ValueError, match="format must be one of 'onnx', 'safetensors'"):
        export_run(run, tmp_path / "model.onnx", format="pickle")
    with pytest.raises(FileNotFoundError, match="RUN must be the folder of a run"):
        export_run(tmp_path / "none", tmp_path / "model.onnx")
    vectors = random_run(
        tmp_path / "vectors", "glyphs", "backbone.name=features", "backbone.num_features=4"
    )
    with pytest.raises(ValueError, match="must take images.*takes vectors"):
        export_run(vectors, tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        export_run(run, tmp_path / "folder.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"vectors", "folder.onnx"}


def test_a_name_may_leave_the_format_to_the_caller(run, tmp_path):
    made = export_run(run, tmp_path / "model.bin", format="safetensors")
    network = network_of_file(made.path, format="safetensors")
    assert network.fingerprint == made.facts["fingerprint"]


def test_a_card_replaces_a_card_and_nothing_else(run, tmp_path):
    export_run(run, tmp_path / "model.safetensors")
    export_run(run, tmp_path / "model.safetensors")
    (tmp_path / "README.safetensors.md").write_text("mine")
    with pytest.raises(ValueError, match="README.safetensors.md, which is something else"):
        export_run(run, tmp_path / "README.safetensors")
    assert (tmp_path / "README.safetensors.md").read_text() == "mine"
    assert not (tmp_path / "README.safetensors").exists()


def test_a_card_that_somebody_changed_is_kept_and_the_new_one_lies_beside_it(run, tmp_path):
    made = export_run(run, tmp_path / "model.safetensors")
    card = made.card.read_text().replace("to be filled in by whoever ships it", "MIT")
    made.card.write_text(card)
    again = export_run(run, tmp_path / "model.safetensors")
    assert str(made.path) in made.describe()
    assert "batches of 1, 2 and 7" in made.describe()
    assert made.card.read_text() == card
    assert again.card == tmp_path / "model.safetensors.md.new"
    assert "to be filled in" in again.card.read_text()
    assert "was changed by hand and is kept" in again.describe()
    assert "kept" not in made.describe()


@pytest.mark.parametrize("through", ["a link to the folder", "a link to the file"])
def test_an_export_never_takes_the_place_of_the_runs_own_network(tmp_path, through):
    run = random_run(tmp_path / "run", "glyphs")
    before = (run.folder / "model.safetensors").read_bytes()
    if through == "a link to the folder":
        (tmp_path / "link").symlink_to(run.folder)
        out = tmp_path / "link" / "model.safetensors"
    else:
        out = tmp_path / "link.safetensors"
        out.symlink_to(run.folder / "model.safetensors")
    with pytest.raises(ValueError, match="out must not be the run's own network"):
        export_run(run, out)
    assert (run.folder / "model.safetensors").read_bytes() == before
    run.model()


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize("suffix", ["onnx", "safetensors"])
def test_a_file_that_is_no_export_is_never_replaced(run, exported, tensors, suffix, tmp_path):
    path = tmp_path / f"model.{suffix}"
    other = random_run(tmp_path / "other", "glyphs").folder / "model.safetensors"
    whole = (exported if suffix == "onnx" else tensors).path.read_bytes()
    deep = b'{"a":' * 10**5
    deep = len(deep).to_bytes(8, "little") + deep
    for content in (b"", b"mine", whole[:6], deep, other.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="out must be new, or an export to be replaced"):
            export_run(run, path)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert export_run(run, path).difference < 1e-4


def test_a_network_too_large_for_one_onnx_file_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST_ONNX", 1000)
    with pytest.raises(ValueError, match="smaller than 2 GB.*Export it to .safetensors"):
        export_run(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["onnx", "onnxscript"])
def test_without_onnx_the_way_to_it_is_said(library, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=r"pip install 'weiss\[onnx\]'"):
        export_run(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
