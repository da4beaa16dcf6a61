"""An index, a run or an export that somebody else made opens nothing outside of its own files."""

import json
import shutil
import socket
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from glyph_catalogue import add, build, file_of, photos, put
from shipped import exports
from typer.testing import CliRunner

from weiss._base.checks import UntrustedError
from weiss._base.tensor_files import DIGEST, read_tensors, write_tensors
from weiss.backbones.timm_networks import refuse_outside
from weiss.catalogue import Catalogue
from weiss.catalogue.export import export_run
from weiss.catalogue.networks import network_of_file, network_of_run
from weiss.catalogue.onnx_content import DIGEST_PLACE, digest_of_onnx, has_external_tensors
from weiss.cli.commands import app
from weiss.data import object_storage
from weiss.runs import Run, build_backbone, embed_runs, evaluate_run, to_toml

HUB = "timm:hf-hub:attacker/x"
REACHING = [
    {"name": HUB},
    {"name": "timm:local-dir:/etc"},
    {"name": "timm:hf_hub:attacker/x"},
    {"name": "timm:resnet18", "checkpoint_path": "secret.pth"},
    {"name": "timm:resnet18", "pretrained_cfg": {"file": "secret.pth"}},
    {"name": "timm:resnet18", "pretrained_cfg_overlay": {"url": "https://attacker.example"}},
    {"name": "timm:resnet18", "file": "secret.pth"},
    {"name": "timm:resnet18", "cache_dir": "elsewhere"},
    {"name": "timm:resnet18", "layers": [{"weights": "../secret.pth"}]},
]


class AskedError(Exception):
    """Something outside was opened."""


@pytest.fixture
def asked(monkeypatch):
    """A timm that records how it was asked for a network, and no network connections."""
    found, known = [], socket.getaddrinfo

    def create_model(name, **arguments):
        found.append({"name": name, **arguments})
        raise AskedError(name)

    def connect(*_):
        raise AskedError("a connection")

    def look_up(host, *given, **options):
        return known(host, *given, **options) if host == "127.0.0.1" else connect()

    timm, data = ModuleType("timm"), ModuleType("timm.data")
    timm.list_models = timm.list_pretrained = lambda *_: ["resnet18"]
    timm.create_model, timm.data = create_model, data
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


def change_backbone(folder, section):
    """Write another [backbone] into the recipe of a run or of an index's model."""
    recipe = Run(folder).recipe()
    recipe["backbone"] = {**recipe["backbone"], **section}
    for key in ("widths", "channels"):
        recipe["backbone"].pop(key, None)
    Run(folder).write_recipe(to_toml(recipe))


@pytest.fixture
def hostile_run(tmp_path):
    folder = shutil.copytree(exports() / "run", tmp_path / "run")
    change_backbone(folder, {"name": HUB})
    return folder


@pytest.fixture
def hostile_index(index):
    """An index whose model is hostile, with checksums that agree."""
    model = file_of(index, "model").parent
    change_backbone(model, {"name": HUB})
    put(index, model / "recipe.toml", (model / "recipe.toml").read_bytes())
    return index


@pytest.mark.parametrize("section", REACHING, ids=lambda section: list(section.values())[-1])
def test_a_network_that_reaches_outside_is_refused_before_timm_is_asked(section, asked):
    whole = {"embedding_size": 8, **section}
    with pytest.raises(UntrustedError, match="alone.*Nothing outside was opened.*--trust"):
        build_backbone(whole, weights=False)
    assert not asked


def test_a_network_of_timm_itself_is_built_and_never_with_pretrained_weights(asked):
    section = {"name": "timm:resnet18", "embedding_size": 8, "drop_path_rate": 0.1}
    section |= {"norm_layer": "batchnorm2d", "weights": "imagenet"}
    with pytest.raises(AskedError):
        build_backbone(section, weights=False)
    assert [each["pretrained"] for each in asked] == [False]
    refuse_outside("vit_small_patch14_dinov2.lvd142m", {"img_size": 224, "depths": [1, 2]})
    refuse_outside("resnet18", {"pretrained": False})
    for value in (True, 0, "", "false"):
        with pytest.raises(UntrustedError):
            refuse_outside("resnet18", {"pretrained": value})


@pytest.fixture
def run_of_an_address(glyph_run, tmp_path, monkeypatch):
    """A trained run of somebody else whose data are at an address; nothing may ask there."""

    def ask(address):
        raise AskedError(address)

    monkeypatch.setattr(object_storage, "open_storage", ask)
    run = Run(shutil.copytree(glyph_run, tmp_path / "theirs"))
    recipe = run.recipe()
    run.write_recipe(to_toml(recipe | {"data": recipe["data"] | {"name": "memory://b/photos"}}))
    return run.folder


def test_an_index_without_trust_measures_no_threshold_at_an_address(run_of_an_address, tmp_path):
    folder = photos(tmp_path / "photos", count=3)  # too few to be measured on
    change = build(run_of_an_address, folder, tmp_path / "index")
    assert "test data are at an address, which needs --trust" in "\n".join(change.lines)
    assert Catalogue.open(tmp_path / "index", device="cpu").threshold is None
    with pytest.raises(AskedError, match="memory://b/photos"):
        build(run_of_an_address, folder, tmp_path / "other", trust=True)


def test_no_evaluation_without_trust_asks_at_an_address(run_of_an_address, glyph_run):
    for measure in (evaluate_run, lambda run, **options: embed_runs([run, glyph_run], **options)):
        with pytest.raises(UntrustedError, match="must not open addresses by itself.*--trust"):
            measure(run_of_an_address, device="cpu")
        with pytest.raises(AskedError, match="memory://b/photos"):
            measure(run_of_an_address, device="cpu", trust=True)


def test_what_the_user_trains_is_the_users_wish_and_so_is_trust(asked):
    section = {"name": HUB, "embedding_size": 8, "weights": "imagenet"}
    with pytest.raises(RuntimeError, match="pretrained weights"):
        build_backbone(section)
    with pytest.raises(AskedError):
        build_backbone(section, weights=False, trust=True)
    assert [each["pretrained"] for each in asked] == [True, False]


def command(*words):
    """Return a function that runs a command and raises what it raises."""

    def run(trust=False):
        said = [*map(str, words), *(["--trust"] if trust else [])]
        raise CliRunner().invoke(app, said).exception

    return run


OPENING = {
    "network_of_run": lambda run, index, out: partial(network_of_run, run),
    "evaluate_run": lambda run, index, out: partial(evaluate_run, run),
    "embed_runs": lambda run, index, out: partial(embed_runs, [run]),
    "export_run": lambda run, index, out: partial(export_run, run, out / "model.safetensors"),
    "build_index": lambda run, index, out: partial(build, run, out / "photos", out / "new"),
    "add_items": lambda run, index, out: partial(add, index, out / "photos"),
    "Catalogue.open": lambda run, index, out: partial(Catalogue.open, index),
    "weiss search": lambda run, index, out: command(
        "search", index, out / "photos" / "class0" / "0.jpg"
    ),
    "weiss serve": lambda run, index, out: command("serve", index, "--port", 0),
    "weiss index": lambda run, index, out: command(
        "index", run, out / "photos", "--out", out / "new"
    ),
    "weiss index --add": lambda run, index, out: command(
        "index", "--add", out / "photos", "--out", index
    ),
    "weiss evaluate": lambda run, index, out: command("evaluate", run),
    "weiss export": lambda run, index, out: command(
        "export", run, "--out", out / "model.safetensors"
    ),
}


@pytest.mark.parametrize("name", OPENING)
def test_what_somebody_else_made_asks_nobody_without_trust(
    name, hostile_run, hostile_index, asked, tmp_path
):
    photos(tmp_path / "photos", 2)
    open_it = OPENING[name](hostile_run, hostile_index, tmp_path)
    with pytest.raises(UntrustedError, match="name='hf-hub:attacker/x'"):
        open_it()
    assert not asked
    with pytest.raises(AskedError):
        open_it(trust=True)


@pytest.mark.usefixtures("unrendered")
def test_a_report_shows_images_of_a_network_from_elsewhere_only_with_trust(
    hostile_run, asked, tmp_path
):
    page = tmp_path / "page.html"
    words = ["report", str(hostile_run), "--out", str(page)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "(on the command line: --trust)" in page.read_text()
    assert not asked
    assert isinstance(CliRunner().invoke(app, [*words, "--trust"]).exception, AskedError)


def test_a_safetensors_export_asks_nobody_without_trust(asked, tmp_path):
    tensors, words = read_tensors(exports() / "safetensors" / "model.safetensors")
    backbone = {**json.loads(words["backbone"]), "name": HUB}
    path = tmp_path / "model.safetensors"
    write_tensors(path, tensors, {**words, "backbone": json.dumps(backbone)})
    with pytest.raises(UntrustedError, match="hf-hub:attacker"):
        network_of_file(path)
    assert not asked


def with_digest(model):
    """Return the bytes of an ONNX model with a checksum that agrees."""
    content = model.SerializeToString()
    place = DIGEST_PLACE.search(content)
    return content[: place.start(1)] + digest_of_onnx(content) + content[place.end(1) :]


def move_outside(tensor, path):
    """Move the numbers of a tensor to another file."""
    from onnx import StringStringEntryProto, TensorProto

    path.write_bytes(tensor.raw_data)
    entries = {"location": path.name, "offset": "0", "length": str(len(tensor.raw_data))}
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.extend(StringStringEntryProto(key=k, value=v) for k, v in entries.items())


def test_an_onnx_file_with_tensors_in_other_files_needs_trust(tmp_path, monkeypatch):
    import onnx

    whole = exports() / "onnx" / "model.onnx"
    pixels = [np.full((32, 32, 3), 90, dtype=np.uint8)]
    expected = network_of_file(whole, "cpu", threads=1).embed_pixels(pixels)
    model = onnx.load(whole)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    beside = tmp_path / "export"
    beside.mkdir()
    move_outside(largest, beside / "weights.bin")
    path = beside / "model.onnx"
    path.write_bytes(with_digest(model))
    # As an attacker would: a file of that name where the program runs.
    shutil.copy(beside / "weights.bin", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UntrustedError, match="must hold all of its tensors.*--trust"):
        network_of_file(path)
    (tmp_path / "weights.bin").write_bytes(bytes((tmp_path / "weights.bin").stat().st_size))
    trusted = network_of_file(path, "cpu", threads=1, trust=True)
    assert np.abs(trusted.embed_pixels(pixels) - expected).max() < 1e-5


def test_tensors_in_other_files_are_found_wherever_a_model_holds_tensors(tmp_path):
    from onnx import GraphProto, ModelProto, TensorProto

    assert not has_external_tensors((exports() / "onnx" / "model.onnx").read_bytes())

    def outside():
        return TensorProto(data_location=TensorProto.EXTERNAL)

    places = [ModelProto() for _ in range(8)]
    node = [model.graph.node.add().attribute.add() for model in places[:5]]
    node[0].t.CopyFrom(outside())
    node[1].tensors.append(outside())
    node[2].g.initializer.append(outside())
    node[3].graphs.append(GraphProto(initializer=[outside()]))
    node[4].sparse_tensor.values.CopyFrom(outside())
    places[5].graph.sparse_initializer.add().indices.CopyFrom(outside())
    places[6].functions.add().node.add().attribute.add().t.CopyFrom(outside())
    places[7].training_info.add().algorithm.initializer.append(outside())
    for model in places:
        assert has_external_tensors(model.SerializeToString())
    deep = ModelProto()
    graph = deep.graph
    for _ in range(30):
        graph = graph.node.add().attribute.add().g
    assert not has_external_tensors(deep.SerializeToString())
    graph.initializer.append(outside())
    assert has_external_tensors(deep.SerializeToString())
    for broken in (b"\x3a\x7f", b"\x3b", b"\x80" * 11):
        with pytest.raises(ValueError, match="ends within|wire type"):
            has_external_tensors(broken)


def test_an_onnx_file_without_its_checksum_needs_trust(tmp_path):
    import onnx

    model = onnx.load(exports() / "onnx" / "model.onnx")
    kept = [each for each in model.metadata_props if each.key != DIGEST]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(UntrustedError, match="must have its checksum.*--trust"):
        network_of_file(path)
    assert network_of_file(path, trust=True).embedding_size
