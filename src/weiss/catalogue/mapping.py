"""All items of an index in two dimensions: principal components, or UMAP where it is installed.

Principal components keep as much of the variance as two straight lines can, and anything else, a
mean field, can be laid on the same map. UMAP keeps neighbours together instead; how far apart two
groups lie says little then. (umap only here, when it is used.)

Dimensions: n items, D embedding size, m fields.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base import draws
from weiss._base.arrays import Array
from weiss.catalogue.items import DamagedIndexError, Map

SAMPLE = 20_000
"""Items that a map is made from; all are laid on it."""
FEW, MANY, BLOCK = 100, 20_000, 65_536
"""UMAP is for more than a few items, and not for very many: it is made anew with every change."""
SEED = 0


def make_map(
    vectors: Array,
    ids: Array,
    fields: Array,
    field_names: tuple[str, ...],
    *,
    method: str = "auto",
) -> Map:
    """Lay items and fields on a map.

    Args:
        vectors: float32 ``(n, D)``, at least one.
        ids: ``(n,)`` int64, whose they are.
        fields: float32 ``(m, D)``, of unit length as the items are; m may be 0.
        field_names: m names of their classes.
        method: ``"pca"``, ``"umap"``, or ``"auto"``: UMAP if it is installed, for up to 20,000
            items.

    Returns:
        The map; the same for the same items.
    """
    if method not in ("auto", "pca", "umap"):
        raise ValueError(f"method must be 'auto', 'pca' or 'umap'; got {method!r}.")
    chosen = draws.permutation(len(vectors), SEED, draws.QUERIES)[:SAMPLE]
    sample = np.asarray(vectors[np.sort(chosen)], dtype=np.float32)
    # Among a handful of items there are no neighbourhoods to keep.
    if method == "auto":
        fits = FEW < len(vectors) <= MANY
        method = "umap" if fits and find_spec("umap") is not None else "pca"
    if method == "umap":
        return _umap(sample, vectors, ids, fields, field_names)
    mean_D, axes_2D, explained = principal_axes(sample)
    points = _in_blocks(lambda part: (part - mean_D) @ axes_2D.T, vectors)
    field_points = _in_blocks(lambda part: (part - mean_D) @ axes_2D.T, fields)
    return Map("PCA", explained, ids, points, field_names, field_points)


def principal_axes(vectors: Array) -> tuple[Array, Array, float]:
    """Return mean ``(D,)``, the two directions of most variance ``(2, D)``, and their share of it.

    The sign of a direction is such that its largest entry is positive; where there are fewer than
    two, zeros stand.
    """
    mean_D = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean_D
    # D x D, however many items there are.
    variance_D, axes_DD = np.linalg.eigh(centred.T @ centred / max(len(vectors), 1))
    order = np.argsort(variance_D)[::-1]
    total = float(variance_D.clip(min=0).sum())
    axes_2D = np.zeros((2, vectors.shape[1]))
    for place, at in enumerate(order[:2]):
        if variance_D[at] > 1e-12 * max(total, 1e-30):
            axis = axes_DD[:, at]
            axes_2D[place] = axis * np.sign(axis[np.abs(axis).argmax()])
    share = float(variance_D[order[:2]].clip(min=0).sum()) / total if total > 0 else 1.0
    return mean_D.astype(np.float32), axes_2D.astype(np.float32), min(share, 1.0)


def _umap(
    sample: Array, vectors: Array, ids: Array, fields: Array, field_names: tuple[str, ...]
) -> Map:
    try:
        import umap
    except ImportError as error:
        raise ImportError(
            "umap-learn is needed for this map. Install it with: pip install 'weiss[umap]'"
        ) from error
    # A seed makes it the same every time, for the price of one thread.
    reducer = umap.UMAP(n_components=2, metric="cosine", random_state=SEED, n_jobs=1)
    reducer.fit(sample)
    points = _in_blocks(reducer.transform, vectors)
    return Map("UMAP", None, ids, points, field_names, _in_blocks(reducer.transform, fields))


def _in_blocks(project: Any, vectors: Array) -> Array:
    """Project some at a time: of a memory map not all at once."""
    points = np.zeros((len(vectors), 2), dtype=np.float32)
    for start in range(0, len(vectors), BLOCK):
        points[start : start + BLOCK] = project(np.asarray(vectors[start : start + BLOCK]))
    return points


def write_map(path: Path, made: Map) -> None:
    """Write a map to a file: numbers and words, nothing that could run."""
    with path.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            method=np.array(made.method),
            explained=np.array(np.nan if made.explained is None else made.explained),
            ids=made.ids,
            points=made.points,
            field_names=np.array(made.field_names, dtype=np.str_),
            field_points=made.field_points,
        )


def read_map(path: Path) -> Map:
    """Read what `write_map` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            explained = float(kept["explained"])
            return Map(
                str(kept["method"]),
                None if np.isnan(explained) else explained,
                kept["ids"],
                kept["points"],
                tuple(str(name) for name in kept["field_names"]),
                kept["field_points"],
            )
    except FileNotFoundError:
        raise
    # A damaged archive raises whatever its reader stumbles over.
    except Exception as error:
        raise DamagedIndexError(f"{path.name} of the index is damaged ({error}).") from error
