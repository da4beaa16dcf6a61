"""A run whose network gives a prefix of its embedding: what ``--dimension`` makes of a run.

The prefix of an embedding is the network with the first rows of its last layer, so that a run of
fewer dimensions is a run like any other: it can be evaluated, indexed and exported.

Dimensions: d of the prefix.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weiss._base.tensor_files import read_tensors
from weiss.losses.matryoshka import prefix_of_class_vectors
from weiss.runs.card import card
from weiss.runs.folder import FACTS, LOSS, MODEL, Kept, Run
from weiss.runs.recipe import recipe_from_dict
from weiss.runs.toml_text import to_toml

LAST_LAYER = ("head.embedding.weight", "head.embedding.bias")
"""The tensors of a network that have a row for each number of the embedding."""


@contextmanager
def at_dimension(run: Run, dimension: int | None) -> Iterator[Run]:
    """Give a run with the first numbers of its embedding, in a folder that is deleted afterwards.

    Args:
        run: a run with ``backbone.dimensions``.
        dimension: one of these sizes; None or the whole gives the run itself.

    Raises:
        ValueError: the run has not trained this prefix. Others are refused, since nothing says how
            good they are: without Matryoshka training the order of the numbers means nothing.
    """
    if dimension is None or dimension == run.recipe()["backbone"].get("embedding_size"):
        yield run
        return
    sizes = run.recipe()["backbone"].get("dimensions") or []
    if not sizes:
        raise ValueError(
            f"--dimension must be left out for {run.folder}, which did not train prefixes of its "
            "embedding: the order of its numbers means nothing. Train one that did: weiss train "
            "--dimensions 128,32,8"
        )
    if dimension not in sizes:
        raise ValueError(
            f"--dimension must be one of {', '.join(map(str, sizes))}, which {run.folder} trained "
            f"and measured; got {dimension}."
        )
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        yield _write(run, dimension, Run(Path(folder) / "run", trust=run.trust))


def _write(run: Run, size: int, short: Run) -> Run:
    """Write the run of a prefix: recipe, network and, if it is finished, card and result."""
    short.make_folder()
    nested = run.recipe()
    sizes = [each for each in nested["backbone"]["dimensions"] if each <= size]
    del nested["backbone"]["dimensions"]
    nested["backbone"]["embedding_size"] = size
    if len(sizes) > 1:
        nested["backbone"]["dimensions"] = sizes
    run.model_facts()  # which refuses a file that is none of a run
    tensors, words = read_tensors(run.folder / MODEL)
    for name, value in tensors.items():
        if name in LAST_LAYER:
            tensors[name] = value[:size].clone()
        elif name.startswith(LOSS):
            tensors[name] = prefix_of_class_vectors(name, value, size).clone()
    result = run.result() if run.is_finished() else {}
    facts = json.loads(words[FACTS])
    facts["metrics"] = (result.get("dimensions") or {}).get(str(size), {})
    short.write_recipe(to_toml(nested))
    short.write_model(Kept(tensors, words.get("arch", ""), facts))
    if result:
        whole = _result(result, size)
        short.write_card(card(recipe_from_dict(nested), whole))
        short.write_result(whole)
    return short


def _result(result: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the result of a prefix; what training brought was measured for the whole alone."""
    short = {k: v for k, v in result.items() if k not in ("start", "before", "gain")}
    short |= {**(result.get("dimensions") or {}).get(str(size), {}), "embedding_size": size}
    if "test" in result:
        short["test"] = (result.get("test_dimensions") or {}).get(str(size), {})
    for part in ("dimensions", "test_dimensions"):
        if part in result:
            left = {each: value for each, value in result[part].items() if int(each) <= size}
            short.pop(part)
            short |= {part: left} if len(left) > 1 else {}
    return short
