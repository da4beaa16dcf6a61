"""A run on glyphs that takes seconds, and glyphs as files: what tests of catalogues are made of."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from weiss._base.images import encode_png
from weiss.data import glyphs

SETTINGS = [
    "backbone.widths=[16, 32]",
    "backbone.embedding_size=32",
    "data.num_workers=0",
    "train.epochs=2",
    "train.device=cpu",
    "schedule.ramp_epochs=1",
    "evaluate.every=2",
]


def train_on_glyphs(folder, *changes):
    """Train a tiny network on the training characters; return the run folder."""
    return Path(shutil.copytree(_trained(changes), folder, dirs_exist_ok=True))


@cache
def _trained(changes):
    """Train once for all tests of this process that ask for the same."""
    import torch

    from weiss.runs import recipe_from
    from weiss.training import train

    made = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on so little two mostly wait
    try:
        # Pictures take longer than training.
        recipe = recipe_from("glyphs", [*SETTINGS, *changes])
        train(recipe, Path(made) / "run", quiet=True, pictures=False)
    finally:
        torch.set_num_threads(threads)
    return Path(made) / "run"


def write_glyphs(folder, num_classes=40, per_class=8, split="test", first=0):
    """Write PNG files of some characters of a split, one subfolder a character."""
    table = glyphs()
    part = table.part(split)
    for label in part.classes()[first : first + num_classes]:
        name = part.class_names[label].split()[0]
        for number, row in enumerate(np.flatnonzero(part.labels == label)[:per_class]):
            path = Path(folder) / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_png(part.source.read(row)))
    return Path(folder)


def with_other_weights(run, folder):
    """Copy a run and change its network a little: another model of the same shape."""
    from weiss.runs.folder import Kept, Run

    copy = Run(shutil.copytree(run, folder))
    model, loss = copy.model(), copy.loss()
    next(model.parameters()).data.mul_(1.01)
    copy.write_model(Kept.now(model, loss, copy.model_facts()))
    return copy.folder


def without_data(run, folder):
    """Copy a run whose data are no longer where they were."""
    copy = Path(shutil.copytree(run, folder))
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace('name = "glyphs"', 'name = "/gone/glyphs"', 1))
    return copy


def write_photo(path, seed, width=300, height=200):
    """Write a picture of blurred noise, which is not square and has colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((width, height)).save(path)
    return path


def photos(folder, count=6):
    """Write a few of them in three classes."""
    for number in range(count):
        write_photo(folder / f"class{number % 3}" / f"{number}.jpg", number)
    return folder


def names_of(catalogue):
    """Return the id of every item by its name."""
    return {item.name: item.id for item in catalogue.items_of(None, 0, 10**6)}


def opened(folder):
    """Open an index."""
    from weiss.catalogue import Catalogue

    return Catalogue.open(folder, device="cpu")


def build(run, data, folder, **options):
    """Make an index without further ado."""
    from weiss.catalogue import build_index

    return build_index(run, data, folder, device="cpu", quiet=True, num_workers=0, **options)
