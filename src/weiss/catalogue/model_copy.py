"""The model of an index: a copy of the run's, small enough to travel, without paths of the machine.

It is a run folder of its own: `Run`, `network_of_run` and `weiss export` take it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss.catalogue.items import shown
from weiss.catalogue.networks import Network, without_folders
from weiss.data import DATASETS
from weiss.runs import recipe_from_dict, to_toml
from weiss.runs.card import card
from weiss.runs.folder import CARD, MODEL, RECIPE, RESULT, Run
from weiss.theory.distances import unit


def copy_model(run: Run, folder: Path) -> list[str]:
    """Copy recipe, network, fields, result and card of a run.

    Args:
        run: what to copy.
        folder: where to; it is made.

    Returns:
        The names of the files.
    """
    copy = Run(folder)
    nested = without_places(run.recipe())
    copy.write_recipe(to_toml(nested))
    with replacing(folder / MODEL) as temporary:
        shutil.copyfile(run.folder / MODEL, temporary)
    names = [RECIPE, MODEL]
    if run.is_finished():
        result = run.result()
        result["data"] = _data_name(str(result.get("data", "")))
        copy.write_card(card(recipe_from_dict(nested), result))
        copy.write_result(result)
        names += [CARD, RESULT]
    return names


def without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe that says nothing of where things lay on the machine.

    Example:
        >>> without_places({"data": {"name": "/home/me/photos", "root": "/data"}})
        {'data': {'name': 'photos'}}
    """
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found[key] = without_places(value)
        else:
            found[key] = without_folders(value)
    if isinstance(found.get("data"), dict):
        data = {k: v for k, v in found["data"].items() if k not in ("root", "cache")}
        if "name" in data:
            data["name"] = _data_name(data["name"])
        found["data"] = data
    return found


def model_words(network: Network, folder: str) -> dict[str, Any]:
    """Return what a manifest says of the model of its index.

    Args:
        network: the network that embeds.
        folder: where its copy lies in the index folder.
    """
    facts = network.facts
    loss = facts["loss"]
    return {
        "folder": folder,
        "fingerprint": network.fingerprint,
        "embedding_size": network.embedding_size,
        "backbone": facts["backbone"]["name"],
        "section": facts["backbone"],
        "loss": loss["name"] if isinstance(loss, dict) else loss,
        "trained_on": facts["data"],
        "num_classes": facts["num_classes"],
        "protocol": facts["protocol"],
        "preprocessing": facts["preprocessing"],
    }


def is_model_of(network: Network, words: dict[str, Any]) -> bool:
    """Say whether a network gives the vectors of an index: its tensors, how it is built and asked.

    Args:
        network: from a run or an export.
        words: what `model_words` said.
    """
    facts = network.facts
    ours = [network.fingerprint, facts.get("backbone"), facts["preprocessing"]]
    theirs = [words["fingerprint"], words["section"], words["preprocessing"]]
    return bool(json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs)))


def mean_fields(run: Run) -> tuple[Array, tuple[str, ...]]:
    """Return the mean fields ``(m, D)`` of unit length and their classes; m is 0 without any."""
    recipe = recipe_from_dict(run.recipe())
    facts = run.model_facts() or {}
    size = recipe.backbone.embedding_size
    if not recipe.loss.has_fields:
        return np.zeros((0, size), dtype=np.float32), ()
    fields = run.loss().fields
    assert isinstance(fields, nn.Parameter)
    vectors = unit(fields.detach().float()).numpy()
    return vectors, tuple(shown(str(name)) for name in facts["class_names"])


def trained_classes(run: Run) -> frozenset[str]:
    """Return the names of the classes that the network trained on, as they are shown."""
    return frozenset(shown(str(name)) for name in (run.model_facts() or {}).get("class_names", ()))


def _data_name(name: str) -> str:
    return name if name in DATASETS else Path(name).name or "photos"
