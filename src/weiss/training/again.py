"""A saved run, measured again: on its own data or on any other."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from weiss.config import Recipe, recipe_from, recipe_from_dict
from weiss.data import DATASETS, Assembly, Table, open_table
from weiss.evaluation import Retrieval
from weiss.parallel import Processes
from weiss.runs import Run
from weiss.training.evaluator import Evaluator
from weiss.training.experiment import open_data, open_pipeline, with_sizes
from weiss.training.preparation import refuse_absent_device
from weiss.training.stepping import autocast


def evaluate_run(
    run: str | Path | Run,
    *,
    data: str | None = None,
    root: str | None = None,
    split: str | None = None,
    device: str = "auto",
    clustering: bool = False,
    settings: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
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
        settings: further keys of the recipe's ``[data]``, to read other data in another way.
        overrides: changes of the run's recipe, as ``--set`` takes them: ``data.name=PATH`` where
            its folder has moved, ``evaluate.size=256``.

    Returns:
        What was found, query by query; ``summary()`` gives the metrics, ``interval()`` how sure.
    """
    run = run if isinstance(run, Run) else Run(run)
    nested = run.recipe()
    if overrides:
        nested = recipe_from(run.folder, overrides).as_dict()
    nested["data"] = _data_section(nested["data"], data, root) | (settings or {})
    if data is not None:
        nested["evaluate"]["on"] = "test"
    nested["evaluate"]["clustering"] = clustering
    recipe = recipe_from_dict(nested)
    table = open_data(recipe)
    split = _split(table, split, recipe, is_other=data is not None)
    where = _device(device)
    model = run.model(where)
    # Decode what is measured, not what was trained on.
    table = table.take(table.rows(split))
    pipeline = open_pipeline(recipe, table, where, Processes())
    precision = recipe.train.precision if where.type == "cuda" else "fp32"
    evaluator = Evaluator(pipeline, with_sizes(recipe, model.input).evaluate, Processes())
    return evaluator.evaluate(model, split, precision=autocast(precision, where))


def _data_section(own: dict[str, Any], data: str | None, root: str | None) -> dict[str, Any]:
    section = dict(own)
    if data is not None:
        kept = {key: own[key] for key in own if key in ("keep", "num_workers", "cache")}
        # Other data are not there to be trained on: whatever can be measured is.
        section = {**kept, "name": data, "min_images": 1, "shared_classes": True}
        if data not in DATASETS:
            section["split"] = _given_or_all(data, root)
    return section | ({} if root is None else {"root": root})


def _given_or_all(data: str, root: str | None) -> str:
    """Return how to read somebody's own data: by the splits they have, or all as one part."""
    how = Assembly(split="given", shared_classes=True, min_images=1, skip_bad=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_table(data, root=root, how=how)
    except ValueError as error:
        if "split must not be 'given'" not in str(error):
            raise
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


def _device(asked: str) -> torch.device:
    refuse_absent_device(asked, "device")
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(asked)
