"""All items of an index in two dimensions: UMAP where it is installed, t-SNE, or two straight axes.

UMAP and t-SNE keep neighbours together; distances between groups mean little there. t-SNE has no
rule for new points: an item that it has not placed, and a mean field, lies between the nearest
items that it has, by their similarities.

For few items and for very many, and with at least three classes, the axes are the principal
components of the class means, which keep the classes apart as far as two axes can; with fewer
classes they are those of the items. They are not scaled by the scatter within classes, as in
discriminant analysis: with more dimensions than items that separates any labels, also wrong ones.
Mean fields are projected like items. umap and scikit-learn are imported only here, when they are
used.

Dimensions: n items, D embedding size, m fields.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from torch import nn

from weiss._base import draws
from weiss._base.arrays import Array
from weiss.catalogue.records import damaged, printable
from weiss.runs import recipe_from_dict
from weiss.runs.folder import Run
from weiss.theory.distances import unit
from weiss.theory.sublattices import each_of, rows_of

SAMPLE = 20_000
"""Items that the projection is fitted to; all items are projected."""
UMAP_ABOVE, UMAP_UP_TO = 100, 20_000
"""UMAP needs more than a few items, and takes long for many: a map is made with every change."""
TSNE_ABOVE, TSNE_SAMPLE, TSNE_UP_TO = 400, 2_000, 10_000
"""t-SNE takes a second for 400 items and seconds for 2,000; a map is made with every change."""
BETWEEN = 5
"""Items that have a place, between which another item is placed."""
LEAST_CLASSES = 3
"""The means of two classes lie on one line, and give one axis."""
PROJECTED_AT_ONCE = 65_536
SIMILARITIES_AT_ONCE = 8_000_000
SEED = 0
Projection = Callable[[Array], Array]
"""From vectors ``(n, D)`` to places ``(n, 2)``."""


@dataclass(frozen=True)
class Map:
    """All items of an index in two dimensions.

    Attributes:
        method: ``"PCA"``, ``"UMAP"``, ``"t-SNE"`` or ``"PCA of class means"``.
        explained: the share of the variance that the two dimensions hold; None for UMAP and t-SNE.
        ids: ``(n,)`` int64, the items.
        points: ``(n, 2)`` float32, their positions.
        field_names: m names of the classes whose mean fields are known.
        field_points: ``(m, 2)`` float32, the positions of these fields.
    """

    method: str
    explained: float | None
    ids: Array
    points: Array
    field_names: tuple[str, ...]
    field_points: Array


def make_map(
    vectors: Array,
    ids: Array,
    fields: Array,
    field_names: tuple[str, ...],
    labels: Array | None = None,
) -> Map:
    """Project items ``(n, D)`` and fields ``(m, D)`` to two dimensions, always in the same way.

    The method is UMAP if it is installed, for 101 to 20,000 items, or t-SNE, if scikit-learn is,
    for 401 to 10,000. Else the axes are those of the module's first lines: ``labels`` are the
    classes of the items, ``(n,)``, -1 for none; None if unknown.
    """
    chosen = draws.permutation(len(vectors), SEED, draws.QUERIES)[:SAMPLE]
    rows = np.sort(chosen)
    sample = np.asarray(vectors[rows], dtype=np.float32)
    explained: float | None = None
    if UMAP_ABOVE < len(vectors) <= UMAP_UP_TO and find_spec("umap") is not None:
        method, project = "UMAP", _umap(sample)
    elif TSNE_ABOVE < len(vectors) <= TSNE_UP_TO and find_spec("sklearn") is not None:
        first = np.asarray(vectors[np.sort(chosen[:TSNE_SAMPLE])], dtype=np.float32)
        method, project = "t-SNE", _tsne(first)
    else:
        of_sample = None if labels is None else labels[rows]
        method, project, explained = _straight_axes(sample, of_sample)
    points = _in_blocks(project, vectors)
    return Map(method, explained, ids, points, field_names, _in_blocks(project, fields))


def mean_fields(run: Run) -> tuple[Array, tuple[str, ...]]:
    """Return the mean fields ``(m, D)`` of unit length and their classes; m is 0 without any.

    A class with several fields is there with each of them.
    """
    recipe, names = recipe_from_dict(run.recipe()), (run.model_facts() or {})["class_names"]
    if not recipe.loss.has_fields or not names:  # without classes it has not trained
        return np.zeros((0, recipe.backbone.embedding_size or 0), dtype=np.float32), ()
    fields = run.loss().fields
    assert isinstance(fields, nn.Parameter)
    shown = [printable(str(name)) for name in names for _ in range(each_of(fields))]
    return unit(rows_of(fields.detach().float())).numpy(), tuple(shown)


def principal_axes(vectors: Array) -> tuple[Array, Array, float]:
    """Return mean ``(D,)``, the two directions of most variance ``(2, D)``, and their share of it.

    The largest entry of a direction is positive. A direction without variance is zero.
    """
    mean_D = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean_D
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


def _class_means(sample: Array, labels: Array | None) -> Array:
    """Return the mean of each class that has items in the sample, ``(C, D)``."""
    known = np.zeros(len(sample), bool) if labels is None else labels >= 0
    names, place_n = np.unique([] if labels is None else labels[known], return_inverse=True)
    sums_CD = np.zeros((len(names), sample.shape[1]))
    np.add.at(sums_CD, place_n, sample[known])
    counts_C = np.bincount(place_n, minlength=len(names))
    means_CD: Array = (sums_CD / counts_C[:, None]).astype(np.float32)
    return means_CD


def _share(sample: Array, axes_2D: Array) -> float:
    """Return the share of the variance of the items that lies along two axes."""
    centred = sample - sample.mean(axis=0, dtype=np.float64)
    total = float((centred**2).sum())
    kept = float(((centred @ axes_2D.T) ** 2).sum())
    return min(kept / total, 1.0) if total > 0 else 1.0


def _straight_axes(sample: Array, labels: Array | None) -> tuple[str, Projection, float]:
    """Return which axes were chosen, the projection on them, and their share of the variance."""
    method, means_CD = "PCA", _class_means(sample, labels)
    if len(means_CD) >= LEAST_CLASSES:
        method = "PCA of class means"
        mean_D, axes_2D, _ = principal_axes(means_CD)
        explained = _share(sample, axes_2D)
    else:
        mean_D, axes_2D, explained = principal_axes(sample)
    return method, lambda part: (part - mean_D) @ axes_2D.T, explained


def _umap(sample: Array) -> Projection:
    import umap

    # The seed makes it deterministic, and restricts it to one thread.
    reducer = umap.UMAP(n_components=2, metric="cosine", random_state=SEED, n_jobs=1)
    reducer.fit(sample)
    project: Projection = reducer.transform
    return project


def _tsne(sample: Array) -> Projection:
    from sklearn.manifold import TSNE

    # It starts from the principal components, so that the same items have the same map. They are
    # scaled as scikit-learn scales its own, which cannot be computed of items that are all alike.
    mean_D, axes_2D, _ = principal_axes(sample)
    start = (sample - mean_D) @ axes_2D.T
    start *= 1e-4 / max(float(start[:, 0].std()), 1e-12)
    places = TSNE(metric="cosine", init=start, random_state=SEED).fit_transform(sample)
    places = (places / max(float(np.abs(places).max()), 1e-12)).astype(np.float32)
    return lambda part: place_between(np.asarray(part, dtype=np.float32), sample, places)


def place_between(vectors: Array, sample: Array, places: Array) -> Array:
    """Return the places ``(n, 2)`` of vectors ``(n, D)`` from those of a sample ``(s, D)``.

    Each is the mean of the places of the `BETWEEN` nearest, weighted by 1 / (1 - cosine); so a
    vector that is in the sample has its own place.
    """
    points = np.zeros((len(vectors), 2), dtype=np.float32)
    rows = max(1, SIMILARITIES_AT_ONCE // len(sample))
    for start in range(0, len(vectors), rows):
        apart = np.maximum(1 - vectors[start : start + rows] @ sample.T, 1e-6)
        near = np.argpartition(apart, min(BETWEEN, len(sample)) - 1, axis=1)[:, :BETWEEN]
        weights = 1 / np.take_along_axis(apart, near, 1)
        weights /= weights.sum(axis=1, keepdims=True)
        points[start : start + rows] = (weights[:, :, None] * places[near]).sum(axis=1)
    return points


def _in_blocks(project: Projection, vectors: Array) -> Array:
    """Project in blocks: the vectors may be a memory map."""
    points = np.zeros((len(vectors), 2), dtype=np.float32)
    for start in range(0, len(vectors), PROJECTED_AT_ONCE):
        points[start : start + PROJECTED_AT_ONCE] = project(
            np.asarray(vectors[start : start + PROJECTED_AT_ONCE])
        )
    return points


def write_map(path: Path, made: Map) -> None:
    """Write a map to an npz file, without pickles."""
    explained = np.nan if made.explained is None else made.explained
    names = np.array(made.field_names, dtype=np.str_)
    with path.open("wb") as file:
        arrays = {**vars(made), "explained": explained, "field_names": names}
        np.savez(file, allow_pickle=False, **arrays)


def read_map(path: Path) -> Map:
    """Read a map that `write_map` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            explained = float(kept["explained"])
            ids, names = kept["ids"], tuple(printable(str(name)) for name in kept["field_names"])
            return Map(
                str(kept["method"]),
                None if np.isnan(explained) else explained,
                ids,
                kept["points"].astype(np.float32).reshape(len(ids), 2),
                names,
                kept["field_points"].astype(np.float32).reshape(len(names), 2),
            )
    except FileNotFoundError:
        raise
    # A damaged archive raises errors of many types.
    except Exception as error:
        raise damaged(path.name, error) from error
