"""A network that is not trained, as a run of no epochs: whatever takes a run takes it.

Its embedding is the pooled features of its trunk, without a head. It has trained on no class, so
that every class counts as one that it never saw.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from weiss._base import checks
from weiss.backbones import BACKBONES, POOLINGS, Embedder
from weiss.backbones.by_name import IMAGENET, TIMM
from weiss.backbones.embedder import NO_HEAD
from weiss.runs.card import card
from weiss.runs.completion import complete_network
from weiss.runs.folder import Kept, Run, build_backbone
from weiss.runs.overrides import recipe_with
from weiss.runs.recipe import Recipe
from weiss.runs.recipe_files import recipe_from
from weiss.runs.summaries import UNTRAINED
from weiss.runs.toml_text import to_toml

USUAL = "resnet50"
"""The network that is used if none is named: that of the recipe for photos."""


def without_head(recipe: Recipe) -> Recipe:
    """Return a recipe whose network is that which a recipe starts from, without a head."""
    changes = {
        "backbone.head": NO_HEAD,
        "backbone.embedding_size": None,
        "backbone.dimensions": None,
        "backbone.train": None,
        "train.warmup_epochs": 0,
        "train.warmup_on": None,
        "augment.views": None,
    }
    return recipe_with(recipe, changes)


def write_untrained(
    run: Run, recipe: Recipe, model: Embedder, result: dict[str, Any], made_with: dict[str, Any]
) -> None:
    """Write the folder of a run of no epochs.

    Args:
        run: where to; locked, or nobody else's.
        recipe: complete.
        model: its network.
        result: what was measured, and what it is about.
        made_with: versions and hardware.
    """
    metrics = {k: v for k, v in result.items() if isinstance(v, float) and k != "seconds"}
    metrics |= {k: result[k] for k in ("queries", "queries_left_out") if k in result}
    facts = {"epoch": 0, "metrics": metrics, "seconds": 0.0, "class_names": []}
    whole = {
        **result,
        **{"epoch": 0, "loss": UNTRAINED, "epochs": 0, "steps": 0, "num_classes": 0},
    }
    more = {"made_with": made_with} if made_with else {}
    run.write_recipe(to_toml({**recipe.as_dict(), **more}))
    run.write_model(Kept.now(model, nn.Identity(), facts))
    run.write_card(card(recipe, whole))
    run.write_result(whole)


def pretrained_run(
    folder: str | Path,
    backbone: str | None = None,
    weights: str | Path | None = None,
    pooling: str | None = None,
) -> Run:
    """Write a pretrained network into a folder, as a run of no epochs on no data.

    Args:
        folder: of the run; it must hold none.
        backbone: a name of `weiss.backbones.BACKBONES`, or ``"timm:NAME"``; ``"resnet50"`` by
            default.
        weights: a file, an http(s) address, ``"imagenet"`` for the public ones (the default), or
            ``"scratch"``.
        pooling: a name of `weiss.backbones.POOLINGS`; by default ``"avg"``, and timm's own for
            timm. Which is best depends on the photos: `weiss evaluate` measures it.

    Raises:
        ValueError: there is no such network, or the weights are not its own.
        OSError: the weights cannot be read, or not be downloaded.
    """
    name = USUAL if backbone is None else backbone
    start = _start(name, weights)
    changes = {"backbone.name": name, "backbone.weights": start}
    if pooling is not None:
        checks.one_of("--pooling", pooling, [*POOLINGS, "own"], "a pretrained network")
    if pooling is not None or name in BACKBONES:
        changes["backbone.pooling"] = pooling or "avg"
    recipe = without_head(recipe_from("photos", changes))
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)  # for what the weights leave open
            model = build_backbone(recipe.as_dict()["backbone"], trust=True)
    except (OSError, RuntimeError) as error:
        if start != IMAGENET and not start.lower().startswith(("http://", "https://")):
            raise
        raise OSError(
            f"the weights of {name!r} must be downloaded, which failed ({_first_sentence(error)}); "
            "without a connection pass a file of them: --weights FILE."
        ) from error
    run = Run(folder, trust=True)
    run.make_folder()
    complete = complete_network(recipe, model)
    result: dict[str, Any] = {
        **{"seed": complete.seed, "data": "", "backbone": name, "head": NO_HEAD},
        **{"embedding_size": model.embedding_size, "measured_on": "nothing", "seconds": 0.0},
    }
    write_untrained(run, complete, model.eval(), result, {})
    return run


def _start(name: str, weights: str | Path | None) -> str:
    """Return where a network starts; refuse one without weights, or not for images."""
    if name == "features" or (name not in BACKBONES and not name.startswith(TIMM)):
        known = [each for each in BACKBONES if each != "features"]
        raise ValueError(
            f"--backbone must be one of {', '.join(known)}, or timm:NAME; got {name!r}."
            f"{checks.suggestion(name, known)}"
        )
    if weights is not None:
        return str(weights)
    if name in BACKBONES and not BACKBONES[name].imagenet:
        raise ValueError(
            f"--weights FILE must be given for {name!r}: no public weights of it can be "
            "downloaded. Pass a safetensors or PyTorch file, or choose another --backbone."
        )
    return IMAGENET


def _first_sentence(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0].rstrip(".")
