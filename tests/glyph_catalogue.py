"""A run on glyphs that takes seconds, glyphs as files, and an index of them: for catalogues.

What is expensive is made by functions ``make(folder)`` that write everything into one folder, for
`built_once`. A test that changes a file copies it first.
"""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from built_once import built_once
from PIL import Image

from weiss._base.images import encode_png
from weiss.catalogue import Catalogue, add_items, build_index, remove_items
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import MANIFEST, sealed
from weiss.data import glyphs
from weiss.runs import Kept, Run, recipe_from
from weiss.training import train

OLD_INDEX = Path(__file__).parent / "compatibility" / "index"
"""An index of an older version, only to be read."""
SETTINGS = [
    "backbone.widths=[16, 32]",
    "backbone.embedding_size=32",
    "data.num_workers=0",
    "train.epochs=2",
    "train.device=cpu",
    "schedule.ramp_epochs=1",
    "evaluate.every=2",
]


def make_glyph_run(folder):
    """Train a tiny network on the training characters: ``run``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two would mostly wait
    try:
        # Without pictures, which take longer than training.
        train(recipe_from("glyphs", SETTINGS), folder / "run", quiet=True, pictures=False)
    finally:
        torch.set_num_threads(threads)


def make_glyph_catalogue(folder):
    """Write ``run``, ``characters`` (40 of them that the run has not seen) and ``index``."""
    train_on_glyphs(folder / "run")
    write_glyphs(folder / "characters")
    build(folder / "run", folder / "characters", folder / "index")


def train_on_glyphs(folder):
    """Copy a run on glyphs to a folder, and return it: 32 dimensions, mean fields."""
    run = built_once("glyph_run", make_glyph_run) / "run"
    return Path(shutil.copytree(run, folder, dirs_exist_ok=True))


def glyph_catalogue():
    """Return the folder of `make_glyph_catalogue`, only to be read."""
    return built_once("glyph_catalogue", make_glyph_catalogue)


def write_glyphs(folder, num_classes=40, per_class=8, split="test", first=0):
    """Write PNG files of some characters of a split, one subfolder for each character."""
    part = glyphs().part(split)
    for label in part.classes()[first : first + num_classes]:
        name = part.class_names[label].split()[0]
        for number, row in enumerate(np.flatnonzero(part.labels == label)[:per_class]):
            path = Path(folder) / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_png(part.source.read(row)))
    return Path(folder)


def with_other_weights(run, folder):
    """Copy a run and change its network a little: another model of the same shape."""
    copy = Run(shutil.copytree(run, folder))
    model, loss = copy.model(), copy.loss()
    next(model.parameters()).data.mul_(1.01)
    copy.write_model(Kept.now(model, loss, copy.model_facts()))
    return copy.folder


def without_data(run, folder):
    """Copy a run whose data do not exist: its index has no threshold unless its items give one."""
    copy = Path(shutil.copytree(run, folder))
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace('name = "glyphs"', 'name = "/gone/glyphs"', 1))
    return copy


def write_photo(path, seed, width=300, height=200):
    """Write a picture of blurred noise, which is not square and has colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((width, height)).save(path)
    return path


def photos(folder, count=6, first=0):
    """Write a few of them in three classes."""
    for number in range(first, first + count):
        write_photo(folder / f"class{number % 3}" / f"{number}.jpg", number)
    return folder


def names_of(catalogue):
    """Return the id of every item by its name."""
    return {item.name: item.id for item in catalogue.items_of(None, 0, 10**6)}


def opened(folder):
    """Open an index."""
    return Catalogue.open(folder, device="cpu")


def build(run, data, folder, **options):
    """Make an index on the CPU, without output."""
    return build_index(run, data, folder, device="cpu", quiet=True, num_workers=0, **options)


def built(run, data, folder, **options):
    """Make an index and open it."""
    build(run, data, folder, **options)
    return opened(folder)


def add(folder, data, **options):
    """Add to an index on the CPU, without output."""
    return add_items(folder, data, device="cpu", quiet=True, num_workers=0, **options)


def remove(folder, *what):
    """Remove items from an index, without output."""
    return remove_items(folder, what, quiet=True)


@contextmanager
def full_disk(monkeypatch):
    """Let the change inside fail at its last step, the replacement of the manifest."""

    def no_room(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(IndexFolder, "switch", no_room)
        with pytest.raises(OSError, match="No space left"):
            yield


def contents(folder):
    """Return the content of every file below a folder."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def file_of(index, kind):
    """Return the path of a file of an index, for example ``vectors``."""
    names = IndexFolder(index).manifest().files
    return index / next(name for name in names if name.startswith(f"{kind}-"))


def change_manifest(index, change):
    """Let a function change the entries of index.json, which gets the right checksum."""
    words = json.loads((index / MANIFEST).read_text())
    del words["checksum"]
    change(words)
    (index / MANIFEST).write_text(sealed(words))


def put(index, path, content):
    """Write a file of an index, with the right checksum in the manifest."""
    path.write_bytes(content)
    name = path.relative_to(index).as_posix()
    facts = {name: IndexFolder(index).file_facts(name)}
    change_manifest(index, lambda words: words["files"].update(facts))
