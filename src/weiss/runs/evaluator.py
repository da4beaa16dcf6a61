"""A network measured on the items of a pipeline.

Dimensions: n some rows of the table, D embedding size.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss._base.arrays import Array
from weiss._base.processes import Processes
from weiss.data import CentreCrop, Pipeline, Table
from weiss.evaluation.retrieval import Retrieval, evaluate_retrieval
from weiss.runs.recipe_sections import Evaluate
from weiss.theory.distances import unit

Precision = Callable[[], AbstractContextManager[Any]]


class NotFiniteError(RuntimeError):
    """The loss, or a parameter, is NaN or infinite."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """The items of a split and their embeddings.

    Attributes:
        table: the N items; images through ``table.source.read``.
        embeddings: ``(N, D)``, in the order of the table.
        queries: ``(n,)`` which rows look for others.
        gallery: which rows may be found; None: all but the query itself.
        recall_at: the k of recall@k.
    """

    table: Table
    embeddings: Tensor
    queries: Array
    gallery: Array | None
    recall_at: tuple[int, ...] = (1, 2, 4, 8)

    def retrieval(
        self, embeddings: Tensor | None = None, *, clustering: bool = False, group: Any = None
    ) -> Retrieval:
        """Evaluate retrieval among these items, by other embeddings of them if some are given."""
        how = {"recall_at": self.recall_at, "clustering": clustering, "group": group}
        return retrieval_of_kept(self.kept(), embeddings, **how)

    def kept(self) -> dict[str, Tensor]:
        """Return all that retrieval needs, as tensors: it can be evaluated without the data."""
        kept = {
            "embeddings": self.embeddings,
            "labels": torch.from_numpy(np.ascontiguousarray(self.table.labels)),
            "queries": torch.from_numpy(self.queries),
        }
        return kept if self.gallery is None else kept | {"gallery": torch.from_numpy(self.gallery)}


def retrieval_of_kept(
    kept: Mapping[str, Tensor], embeddings: Tensor | None = None, **how: Any
) -> Retrieval:
    """Evaluate retrieval among items by `Embedded.kept`, or by other embeddings of them.

    ``how`` are options of `weiss.evaluation.evaluate_retrieval`.
    """
    vectors = kept["embeddings"] if embeddings is None else embeddings
    labels, queries, gallery = kept["labels"], kept["queries"], kept.get("gallery")
    return evaluate_retrieval(
        vectors[queries.to(vectors.device)],
        labels[queries],
        None if gallery is None else vectors[gallery.to(vectors.device)],
        None if gallery is None else labels[gallery],
        **how,
    )


def searched_part(table: Table, split: str) -> Array:
    """Return the rows of a split; for a test split, query and gallery where a table has both."""
    if split == "test" and table.has("query") and table.has("gallery"):
        return np.flatnonzero(np.isin(table.splits, ("query", "gallery")))
    return table.rows(split)


class Evaluator:
    """Embeds items of a pipeline and evaluates retrieval among them."""

    def __init__(
        self, pipeline: Pipeline, crop: CentreCrop, settings: Evaluate, processes: Processes
    ) -> None:
        self.pipeline, self.settings, self.processes = pipeline, settings, processes
        self.table, self.crop = pipeline.table, crop

    def on(self, pipeline: Pipeline) -> "Evaluator":
        """Return the evaluator of another pipeline."""
        return Evaluator(pipeline, self.crop, self.settings, self.processes)

    @torch.no_grad()
    def embed(
        self,
        model: nn.Module,
        rows: Array,
        *,
        precision: Precision,
        watch: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Embed some rows of the table, ``(n, D)`` on the device, the same in every process.

        ``precision`` makes the context to compute in; ``watch`` is called between batches and may
        raise to stop.

        Raises:
            NotFiniteError: some of them are NaN or infinite.
        """
        if len(rows) < self.processes.size:
            raise ValueError(
                f"there must be at least one item for each of {self.processes.size} processes to "
                f"evaluate; there are {len(rows)}. Use fewer processes."
            )
        # The main process saves its buffers, so every process measures with those.
        self.processes.agree(model.buffers())
        was_training = model.training
        model.eval()
        mine = rows[self.processes.rank :: self.processes.size]
        size = self.settings.batch_size
        parts = []
        try:
            for batch in self.pipeline.evaluation(self.crop, rows=mine, batch_size=size):
                watch()
                with precision():
                    parts.append(model(batch.images))
        finally:
            model.train(was_training)
        embeddings = self.processes.collect(torch.cat(parts), len(rows))
        if not bool(embeddings.isfinite().all()):
            raise NotFiniteError("embeddings must be finite to be evaluated; some are not.")
        return embeddings

    def embed_part(self, model: nn.Module, split: str, **options: Any) -> Embedded:
        """Embed the items of a split; ``options`` are those of `embed`.

        The query part of a test split looks for items of its gallery part.
        """
        rows = searched_part(self.table, split)
        vectors, part = self.embed(model, rows, **options), self.table.take(rows)
        queries, gallery = np.arange(len(part)), None
        if split == "test" and part.has("query"):
            queries, gallery = part.rows("query"), part.rows("gallery")
        return Embedded(part, vectors, queries, gallery, self.settings.recall_at)

    def evaluate_prefixes(
        self, model: nn.Module, split: str, dimensions: Sequence[int], **options: Any
    ) -> tuple[Retrieval, dict[str, dict[str, float | int]], Embedded]:
        """Evaluate retrieval on a split, query by query, and the metrics of prefixes.

        ``dimensions`` are the sizes of prefixes, the whole among them; empty for none. The metrics
        are by size, as text: they are written to JSON. The embeddings come with them. ``options``
        are those of `embed`.
        """
        embedded = self.embed_part(model, split, **options)
        how = {"clustering": self.settings.clustering, "group": self.processes.group}
        found, by_size = embedded.retrieval(**how), {}
        for size in dimensions:
            short = embedded.embeddings[:, :size]
            is_whole = size == embedded.embeddings.shape[1]
            here = found if is_whole else embedded.retrieval(unit(short), **how)
            by_size[str(size)] = here.summary()
        return found, by_size, embedded
