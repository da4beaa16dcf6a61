"""A network measured on the items of a pipeline.

Dimensions: n some rows of the table, D embedding size.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss._base.arrays import Array
from weiss._base.processes import Processes
from weiss.data import CentreCrop, Pipeline
from weiss.evaluation.retrieval import Retrieval, evaluate_retrieval
from weiss.runs.recipe_sections import Evaluate

Precision = Callable[[], AbstractContextManager[Any]]


class NotFiniteError(RuntimeError):
    """The loss, or a parameter, is NaN or infinite."""


class Evaluator:
    """Embeds items of a pipeline and evaluates retrieval among them."""

    def __init__(
        self, pipeline: Pipeline, crop: CentreCrop, settings: Evaluate, processes: Processes
    ) -> None:
        self.pipeline, self.settings, self.processes = pipeline, settings, processes
        self.table, self._crop = pipeline.table, crop

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
            for batch in self.pipeline.evaluation(self._crop, rows=mine, batch_size=size):
                watch()
                with precision():
                    parts.append(model(batch.images))
        finally:
            model.train(was_training)
        embeddings = self.processes.collect(torch.cat(parts), len(rows))
        if not bool(embeddings.isfinite().all()):
            raise NotFiniteError("embeddings must be finite to be evaluated; some are not.")
        return embeddings

    def evaluate(self, model: nn.Module, split: str, **options: Any) -> Retrieval:
        """Evaluate retrieval on a split, query by query; ``options`` are those of `embed`."""
        rows, gallery = self.roles(split)
        return evaluate_retrieval(
            self.embed(model, rows, **options),
            self._labels(rows),
            None if gallery is None else self.embed(model, gallery, **options),
            None if gallery is None else self._labels(gallery),
            recall_at=self.settings.recall_at,
            clustering=self.settings.clustering,
            group=self.processes.group,
        )

    def roles(self, split: str) -> tuple[Array, Array | None]:
        """Return the queries of a split, and its gallery where that is not the split itself.

        A test split with a query and a gallery part is searched one in the other.
        """
        if split == "test" and self.table.has("query") and self.table.has("gallery"):
            return self.table.rows("query"), self.table.rows("gallery")
        return self.table.rows(split), None

    def _labels(self, rows: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.table.labels[rows]))
