"""A network from a run, a safetensors file or an ONNX file: the same pictures, the same numbers."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from miniature import write_photos
from PIL import Image
from server.served import serving
from shipped import exports, random_run
from typer.testing import CliRunner

from weiss import cli
from weiss._base.images import LUMA, decode
from weiss._base.processes import Processes
from weiss._base.tensor_files import read_tensors, write_tensors
from weiss.catalogue import Catalogue, build_index
from weiss.catalogue.networks import Preprocessing, fingerprint_of, network_of_file, network_of_run
from weiss.data import CentreCrop, Pipeline, from_arrays
from weiss.data.own_data import Assembly
from weiss.runs import Run, embed_runs, recipe_from_dict
from weiss.runs.experiment import open_data, open_pipeline
from weiss.runs.toml_text import to_toml

SIZES = [(40, 50), (32, 32), (300, 500), (700, 290), (5, 90), (256, 257)]


@pytest.fixture(scope="module")
def onnx_file():
    return exports() / "onnx" / "model.onnx"


@pytest.fixture(scope="module")
def tensor_file():
    return exports() / "safetensors" / "model.safetensors"


def picture(height, width, channels=3, seed=0):
    """Return noise on a gradient, so that a shift by a pixel shows."""
    random = np.random.default_rng((height, width, seed))
    slope = np.linspace(0, 200, width)[None, :, None] * np.linspace(0.3, 1, height)[:, None, None]
    noise = random.integers(0, 55, (height, width, channels))
    return (slope + noise).astype(np.uint8)


@pytest.fixture(scope="module")
def pictures():
    return [picture(*size) for size in SIZES]


def test_prepare_gives_the_numbers_of_the_pipeline_that_evaluates(run, pictures, tmp_path):
    for i, pixels in enumerate(pictures):
        (tmp_path / str(i % 2)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / str(i % 2) / f"{i}.png")
    nested = run.recipe()
    nested["data"] |= {"name": str(tmp_path), "split": "all"}
    nested["evaluate"]["on"] = "test"
    recipe = recipe_from_dict(nested)
    cpu, spec = torch.device("cpu"), run.model().input
    pipeline = open_pipeline(recipe, open_data(recipe), spec, cpu, Processes())
    crop = CentreCrop(recipe.evaluate.size, recipe.evaluate.resize)
    (batch,) = pipeline.evaluation(crop)
    names = [pipeline.table.source.name(item) for item in batch.items]
    in_order = [pictures[int(name.split("/")[-1].split(".")[0])] for name in names]
    prepared = network_of_run(run).prepare(in_order)
    assert prepared.dtype == np.float32
    assert np.array_equal(prepared, batch.images.numpy())


@pytest.fixture
def scaled_run(run, tmp_path):
    """A run with scaled decoding, and photos that are large enough for it."""
    photos = write_photos(tmp_path / "photos", 2, 3, lambda c, i: (90 + c, 80 + i))
    copied = Run(shutil.copytree(run.folder, tmp_path / "run"))
    nested = copied.recipe()
    nested["data"] |= {"name": str(photos), "split": "all", "side": 32, "scaled_decoding": True}
    nested["evaluate"] |= {"on": "test", "size": 32, "resize": 32}
    copied.write_recipe(to_toml(nested))
    return copied, photos


def test_a_run_with_scaled_decoding_is_evaluated_with_it(scaled_run):
    copied, _ = scaled_run
    network = network_of_run(copied, "cpu")
    assert network.preprocessing == Preprocessing(3, 32, 32, 32, scaled_decoding=True)
    (embedded,) = embed_runs([copied], split="train", device="cpu")
    source = embedded.table.source
    files = [source.file(row) for row in range(len(source))]
    decoded = {
        scaled: [decode(file, 3, 32, scaled=scaled) for file in files] for scaled in (False, True)
    }
    difference = {
        scaled: np.abs(network.embed_pixels(pixels) - embedded.embeddings.numpy()).max()
        for scaled, pixels in decoded.items()
    }
    assert difference[True] < 1e-6 < 1e-4 < difference[False]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_index_of_a_run_with_scaled_decoding_is_made_and_searched_with_it(
    scaled_run, num_workers, tmp_path
):
    copied, photos = scaled_run
    index, photo = tmp_path / "index", photos / "class 1" / "2.jpg"
    build_index(copied.folder, photos, index, device="cpu", num_workers=num_workers, quiet=True)
    catalogue = Catalogue.open(index, device="cpu")
    assert (catalogue.short_side, catalogue.scaled_decoding) == (32, True)
    usual, as_trained = (
        catalogue.search(catalogue.embed([decode(photo, 3, 32, scaled=scaled)]), 1)[0][0]
        for scaled in (False, True)
    )
    exact = 1 - 1e-6
    assert usual.similarity < exact < as_trained.similarity
    words = ["search", str(index), str(photo), "-k", "1", "--json", "--device", "cpu"]
    told = CliRunner().invoke(cli.app, words)
    (answer,) = json.loads(told.stdout)["answers"]
    with serving(catalogue) as site:
        served = site.search(photo.read_bytes()).json["results"]
    for hit in (answer["results"][0], served[0]):
        assert hit["name"] == "class 1/2.jpg"
        assert hit["similarity"] > exact


def test_a_picture_is_prepared_alike_alone_and_in_company(run, pictures):
    network = network_of_run(run)
    together = network.prepare(pictures)
    for pixels, one in zip(pictures, together, strict=True):
        assert np.abs(network.prepare([pixels])[0] - one).max() < 1e-3


def test_the_network_of_a_run_embeds_files_as_its_evaluation_does(run):
    (embedded,) = embed_runs([run])
    network = network_of_run(run, "cpu")
    pixels = [embedded.table.source.read(i) for i in range(len(embedded.table))]
    assert np.abs(network.embed_pixels(pixels) - embedded.embeddings.numpy()).max() < 1e-6


@pytest.mark.parametrize("kind", ["run", "tensors", "onnx"])
def test_every_kind_gives_the_same_embeddings_and_fingerprint(
    kind, run, tensor_file, onnx_file, pictures
):
    network = {
        "run": lambda: network_of_run(str(run.folder), "cpu"),
        "tensors": lambda: network_of_file(str(tensor_file), "cpu"),
        "onnx": lambda: network_of_file(onnx_file, threads=1),
    }[kind]()
    model = run.model()
    with torch.no_grad():
        expected = model(torch.from_numpy(network.prepare(pictures))).numpy()
    found = network.embed_pixels(pictures)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    assert network.embedding_size == 16
    assert network.fingerprint == fingerprint_of(model.state_dict())
    assert network.preprocessing == Preprocessing(3, size=32, resize=32, short_side=256)
    assert network.facts == network_of_run(run).facts
    assert (network.model is None) == (kind == "onnx")


def test_many_pictures_are_embedded_as_few_are(run):
    network = network_of_run(run)
    many = [picture(33, 40, seed=i) for i in range(150)]
    found = network.embed_pixels(many)
    assert found.shape == (150, 16)
    assert np.abs(found[140:] - network.embed_pixels(many[140:])).max() < 1e-5


def test_no_pictures_have_no_embeddings(run, onnx_file):
    for network in (network_of_run(run), network_of_file(onnx_file)):
        assert network.prepare([]).shape == (0, 3, 32, 32)
        assert network.embed_pixels([]).shape == (0, 16)


def test_a_grey_network_takes_colour_as_its_own_evaluation_would(tmp_path, pictures):
    run = random_run(tmp_path, "glyphs", "backbone.embedding_size=8")
    network = network_of_run(run)
    assert network.preprocessing.channels == 1
    prepared = network.prepare(pictures)
    in_colour = Preprocessing(3, size=32, resize=32, short_side=256).prepare(pictures)
    expected = np.einsum("bchw,c->bhw", in_colour.astype(np.float64), LUMA)[:, None]
    assert np.abs(prepared - expected).max() < 1e-3
    grey = [picture(50, 60, channels=1), picture(40, 40, channels=1)]
    alone = network.prepare(grey)
    assert alone.shape == (2, 1, 32, 32)
    assert np.abs(network.prepare([*grey, *pictures])[:2] - alone).max() < 1e-3


def test_a_grey_pipeline_and_a_grey_network_agree(tmp_path):
    pixels = np.stack([picture(40, 48, channels=1, seed=i) for i in range(4)])
    table = from_arrays(pixels, np.arange(4) % 2, Assembly(split="all"))
    (batch,) = Pipeline(table).evaluation(CentreCrop(32, 32))
    network = network_of_run(random_run(tmp_path, "glyphs", "backbone.embedding_size=8"))
    assert np.array_equal(network.prepare(list(pixels)), batch.images.numpy())


def test_grey_is_repeated_for_a_network_of_colour():
    shape = Preprocessing(3, size=32, resize=40, short_side=256)
    prepared = shape.prepare([picture(50, 60, channels=1)])
    assert prepared.shape == (1, 3, 32, 32)
    assert (prepared == prepared[:, :1]).all()


@pytest.mark.parametrize(
    ("pixels", "kind", "words"),
    [
        (np.zeros((4, 4, 3)), TypeError, "uint8.*float64.*weiss._base.images.decode"),
        ([[1]], TypeError, "uint8.*list"),
        (np.zeros((4, 4), np.uint8), ValueError, "height, width, 1 or 3.*\\(4, 4\\)"),
        (np.zeros((3, 4, 4), np.uint8), ValueError, "channels last"),
        (np.zeros((0, 4, 3), np.uint8), ValueError, "leave empty pictures out"),
    ],
)
def test_what_is_no_picture_is_refused(pixels, kind, words):
    with pytest.raises(kind, match=words):
        Preprocessing(3, 32, 32, 256).prepare([pixels])


def test_batches_of_another_size_are_refused(run):
    with pytest.raises(ValueError, match=r"\(batch, 3, 32, 32\).*\(2, 3, 40, 40\).*embed_pixels"):
        network_of_run(run).embed(np.zeros((2, 3, 40, 40), np.float32))


def test_preprocessing_survives_words():
    shape = Preprocessing(1, size=24, resize=30, short_side=300)
    said = shape.as_dict()
    assert Preprocessing.from_dict(said) == shape
    assert any("300" in step for step in said["steps"])
    assert "scaled" not in str(said)  # as earlier versions wrote it
    scaled = replace(shape, scaled_decoding=True)
    assert Preprocessing.from_dict(scaled.as_dict()) == scaled != shape
    assert any("1/8" in step for step in scaled.as_dict()["steps"])
    with pytest.raises(TypeError, match="scaled_decoding must be True or False for Preprocessing"):
        Preprocessing.from_dict({**said, "scaled_decoding": 1})
    with pytest.raises(ValueError, match="lacks.*resize"):
        Preprocessing.from_dict({"channels": 3, "size": 2, "short_side": 3})
    with pytest.raises(ValueError, match="size must be at most resize"):
        Preprocessing(3, 64, 32, 256)
    with pytest.raises(ValueError, match="1 \\(grey\\) or 3"):
        Preprocessing(2, 32, 32, 256)


def test_the_fingerprint_is_of_names_and_bytes_and_not_of_the_loss(run):
    tensors, _ = read_tensors(run.folder / "model.safetensors")
    state = hashlib.sha256()
    for name in sorted(tensors):
        if name.split(".")[0] != "loss":
            value = tensors[name]
            state.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            state.update(value.numpy().tobytes())
    assert fingerprint_of(tensors) == state.hexdigest()
    name = next(name for name in tensors if not name.startswith("loss."))
    changed = {**tensors, name: tensors[name] + 1}
    assert fingerprint_of(changed) != state.hexdigest()
    assert fingerprint_of({**tensors, "loss.fields": torch.zeros(1)}) == state.hexdigest()


def test_files_that_cannot_be_used_say_why(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no.*weiss export RUN --out"):
        network_of_file(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match="one of onnx, safetensors"):
        network_of_file(tmp_path / "model.pt")
    with pytest.raises(ValueError, match="one of onnx, safetensors"):
        network_of_file(run.folder)
    with pytest.raises(ValueError, match="run's own model: pass the run's folder"):
        network_of_file(run.folder / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="RUN must be the folder of a run"):
        network_of_run(tmp_path)


@pytest.mark.parametrize("kind", ["onnx_file", "tensor_file"])
def test_what_is_no_network_or_cut_off_is_refused(kind, request, tmp_path):
    whole = request.getfixturevalue(kind)
    path, content = tmp_path / whole.name, whole.read_bytes()
    cut = [content[: int(share * len(content))] for share in (0.05, 0.999)]
    for wrong in (b"", b"no network at all", *cut):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="damaged|must be an export"):
            network_of_file(path)


@pytest.mark.parametrize("kind", ["onnx_file", "tensor_file"])
def test_a_single_changed_weight_is_noticed(kind, run, request, tmp_path):
    whole = request.getfixturevalue(kind)
    content = bytearray(whole.read_bytes())
    weight = run.model().state_dict()["head.embedding.weight"].numpy().tobytes()
    content[bytes(content).index(weight) + 5] ^= 1
    path = tmp_path / whole.name
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its checksum"):
        network_of_file(path)


def test_metadata_that_are_no_text_are_refused(onnx_file, tmp_path):
    # The key of the checksum, whose length stays: nothing else would notice.
    content = onnx_file.read_bytes().replace(b"weiss_digest", b"weiss_\xf7igest")
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ValueError, match="must be an ONNX file; it is damaged"):
        network_of_file(tmp_path / "model.onnx")


def foreign_model(**options):
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], **options)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def test_an_onnx_file_of_others_says_what_is_needed(tmp_path):
    path = tmp_path / "foreign.onnx"
    path.write_bytes(foreign_model(float_data=[1.0]).SerializeToString())
    with pytest.raises(ValueError, match="lacks weiss_format, preprocessing, embedding_size, fing"):
        network_of_file(path)


def test_metadata_that_do_not_fit_are_refused(tensor_file, tmp_path):
    tensors, words = read_tensors(tensor_file)
    path = tmp_path / "model.safetensors"
    cases = {
        "must have the format 1; it has '2'": {"weiss_format": "2"},
        "must be as an export writes them": {"preprocessing": "3"},
        "must be as an export writes them; they are not": {"scores": "[" * 10**5},
        "embedding_size must be a whole number": {"embedding_size": '"16"'},
        "network that its metadata describe": {"backbone": '{"name": "no such"}'},
        "have the fingerprint": {"fingerprint": "0" * 64},
    }
    for said, changes in cases.items():
        write_tensors(path, tensors, {**words, **changes})
        with pytest.raises(ValueError, match=said):
            network_of_file(path)


def test_without_onnxruntime_the_way_to_it_is_said(onnx_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'weiss\[onnx\]'"):
        network_of_file(onnx_file)


def test_a_device_that_is_not_there_is_refused(run, onnx_file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device of this machine"):
        network_of_run(run, "cuda")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="no CUDA"):
        network_of_file(onnx_file, "cuda")
    with pytest.raises(ValueError, match="'auto', 'cpu', 'cuda' for an ONNX file; got 'mps'"):
        network_of_file(onnx_file, "mps")
