"""Evaluate or embed with the network of a run, on its own data or on others."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from weiss._base.devices import autocast, refuse_absent_device
from weiss._base.processes import Processes
from weiss.backbones import InputSpec
from weiss.data import DATASETS, Assembly, CentreCrop, Table, open_table
from weiss.data.own_data import NoSplitError
from weiss.evaluation.retrieval import Retrieval
from weiss.runs.completion import image_sizes
from weiss.runs.evaluator import Embedded, Evaluator, Precision, searched_part
from weiss.runs.experiment import open_data, open_pipeline, refuse_addresses
from weiss.runs.folder import RECIPE, Run
from weiss.runs.overrides import Overrides, overridden
from weiss.runs.recipe import Recipe, recipe_from_dict


def evaluate_run(
    run: str | Path | Run,
    *,
    data: str | None = None,
    root: str | None = None,
    split: str | None = None,
    device: str = "auto",
    clustering: bool = False,
    overrides: Overrides = (),
    trust: bool = False,
) -> Retrieval:
    """Compute every metric of a run's network.

    Args:
        run: the run folder.
        data: any data that `weiss.data.open_table` takes by name or path; the run's own by default.
        root: the folder of a named data set.
        split: ``"test"``, ``"valid"`` (classes the run held out) or ``"train"``. By default the
            part that the run was judged on; of other data that have no test part, all of it.
        device: where to compute: ``"auto"``, ``"cpu"``, ``"cuda"``.
        clustering: also cluster, for NMI and AMI.
        overrides: changes of the run's recipe, as `weiss.runs.recipe_from` takes them:
            ``data.name=PATH`` where its folder has moved, ``evaluate.size=256``.
        trust: as for `Run`, for a path.

    Returns:
        What was found, query by query; ``summary()`` gives the metrics, ``interval()`` how sure.
    """
    opened = run if isinstance(run, Run) else Run(run, trust=trust)
    recipe = _recipe(opened, data, root, overrides)
    if data is None:  # otherwise the caller has named all of it
        refuse_addresses(opened, recipe)
    (found,) = _embedded([opened], recipe, split, device, is_other=data is not None)
    return found.retrieval(clustering=clustering)


def embed_runs(
    runs: Sequence[str | Path | Run],
    *,
    split: str | None = None,
    device: str = "auto",
    overrides: Overrides = (),
    trust: bool = False,
) -> list[Embedded]:
    """Embed a part of the data of some runs by the network of each.

    Args:
        runs: run folders on the same data, which are opened once, by the recipe of the first.
        split: as for `evaluate_run`.
        device: where to compute.
        overrides: changes of the first run's recipe, as `weiss.runs.recipe_from` takes them.
        trust: as for `Run`, for paths.

    Returns:
        The items and their embeddings, one entry a run.
    """
    opened = [run if isinstance(run, Run) else Run(run, trust=trust) for run in runs]
    recipe = _recipe(opened[0], None, None, overrides)
    refuse_addresses(opened[0], recipe)
    return list(_embedded(opened, recipe, split, device, is_other=False))


def _embedded(
    runs: Sequence[Run], recipe: Recipe, split: str | None, device: str, *, is_other: bool
) -> Iterator[Embedded]:
    """Embed a part of the data that a recipe names; decode it for the first network."""
    where = device_to_embed_on(device)
    table = open_data(recipe)
    split = _split(table, split, recipe, is_other=is_other)
    table = table.take(searched_part(table, split))
    evaluator: Evaluator | None = None
    for run in runs:
        model = run.model(where)
        if evaluator is None:
            evaluator = make_evaluator(recipe, table, model.input, where)
        yield evaluator.embed_part(model, split, precision=precision_on(where, recipe))


def device_to_embed_on(asked: str) -> torch.device:
    """Return the device for auto, cpu, cuda, ...; auto is a GPU that CUDA sees, else the CPU."""
    refuse_absent_device(asked, "device")
    best = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(best if asked == "auto" else asked)


def make_evaluator(
    recipe: Recipe, table: Table, input: InputSpec, device: torch.device
) -> Evaluator:
    """Return what embeds the items of a table as a recipe and a network ask for."""
    sizes = image_sizes(recipe, input)
    pipeline = open_pipeline(recipe, table, input, device, Processes())
    crop = CentreCrop(sizes.evaluate, sizes.resize)
    return Evaluator(pipeline, crop, recipe.evaluate, Processes())


def precision_on(device: torch.device, recipe: Recipe) -> Precision:
    """Return the precision to embed in: that of training on a GPU, float32 on a CPU."""
    return autocast(recipe.train.precision if device.type == "cuda" else "fp32", device)


def _recipe(run: Run, data: str | None, root: str | None, overrides: Overrides) -> Recipe:
    nested = run.recipe()
    if data is not None:
        own = nested["data"]
        keys = ("side", "scaled_decoding", "keep", "num_workers", "cache")
        kept = {key: own[key] for key in keys if key in own}
        # Other data are not trained on: everything that can be measured is.
        nested["data"] = {**kept, "name": data, "min_images": 1, "shared_classes": True}
        if own.get("nested") and Path(data).is_dir():
            nested["data"]["nested"] = True
        if data not in DATASETS:
            nested["data"]["split"] = _given_or_all(data, root)
        nested["evaluate"]["on"] = "test"
    if root is not None:
        nested["data"]["root"] = root
    return recipe_from_dict(overridden(nested, overrides), f"recipe {run.folder / RECIPE}")


def _given_or_all(data: str, root: str | None) -> str:
    """Return how to read own data: by the splits they have, or all as one part."""
    how = Assembly(split="given", shared_classes=True, min_images=1, skip_bad=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_table(data, root=root, how=how)
    except NoSplitError:
        return "all"
    return "given"


def _split(table: Table, asked: str | None, recipe: Recipe, *, is_other: bool) -> str:
    split = asked
    if split is None:
        split = "valid" if recipe.evaluate.on == "held_out" else "test"
        if is_other and not table.has(split):
            split = "train"
    if not table.has(split):
        parts = list(table.sizes())
        raise ValueError(
            f"split must be a part that {table.name} has; {split!r} is none: it has "
            f"{', '.join(parts)}. Measure that instead: split={parts[0]!r} (on the command line: "
            f"--split {parts[0]})."
        )
    return split
