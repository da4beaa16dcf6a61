"""The images of a column embedded: batches of a table in, the same batches with vectors out.

A callable for engines that move batches: `ray.data.Dataset.map_batches`, Spark's `mapInPandas`, a
loop over Parquet files. `weiss embed --cluster` uses it itself. The network is loaded once, when
the callable is made, so make it where it works: as an actor of Ray, inside the function of Spark.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.checks import some
from weiss.catalogue.building import check_batch_size, embedder_of
from weiss.catalogue.collection import NO_CLASS, Collection
from weiss.catalogue.embedding import decoder_of, embedded_blocks
from weiss.catalogue.embeddings_folder import block_columns, imported_pyarrow
from weiss.catalogue.networks import network_of_run
from weiss.catalogue.segments import Block
from weiss.data import Table
from weiss.data.object_storage import Objects, is_address, is_below
from weiss.data.sources import Files
from weiss.runs.folder import Run

MADE = ("vector", "error")
"""The columns that are added."""


class EmbedColumn:
    """Adds to a batch the columns ``vector``, D float32 of unit length, and ``error``.

    An image that cannot be read has no vector, and the reason in ``error``; all others have none.
    Vectors are those of `weiss embed` and `weiss index`.

    Args:
        run: the run folder whose network embeds.
        column: where the images are: paths, or the bytes of image files.
        root: the folder that paths start from, or an address in object storage.
        batch_size: pictures of a forward pass; the recipe's by default.
        device: where to embed.
        num_workers: decoding processes beside this one; 0 decodes here.
        trust: as for `weiss.runs.Run`.
    """

    def __init__(
        self,
        run: str | Path,
        column: str = "path",
        *,
        root: str | Path | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        num_workers: int = 0,
        trust: bool = False,
    ) -> None:
        check_batch_size(batch_size)
        imported_pyarrow()
        source = Run(run, trust=trust)
        self.column, self._root = column, root
        self._embedder = embedder_of(network_of_run(source, device), source, batch_size)
        self.embedding_size = self._embedder.network.embedding_size
        self._stack = ExitStack()  # the decoding processes end with this one
        self._decode = decoder_of(_table(Files(".", [])), self._embedder, num_workers, self._stack)

    def __call__(self, batch: Any) -> Any:
        """Return a batch with the two columns behind its own.

        A data frame of pandas gives a data frame; a table of pyarrow, or columns by name, a table
        of pyarrow.

        Raises:
            ValueError: there is no such column, it holds neither paths nor bytes, or the batch has
                a column of these names already.
        """
        is_frame = hasattr(batch, "assign")
        table = batch if is_frame or hasattr(batch, "column_names") else _arrow(batch)
        names = [str(name) for name in (table.columns if is_frame else table.column_names)]
        if self.column not in names or (taken := sorted({*names} & {*MADE})):
            lack = f"no column {self.column!r}" if self.column not in names else some(taken)
            raise ValueError(
                f"a batch must have the column {self.column!r} and none of {', '.join(MADE)}; it "
                f"has {lack} among {', '.join(names)}. Name the column of images, or rename others."
            )
        given = table[self.column] if is_frame else table.column(self.column)
        values = given.tolist() if is_frame else given.to_pylist()
        # A frame has None, NaN or NA, which cannot be compared, in the place of a missing value.
        is_lost = given.isna().tolist() if is_frame else [value != value for value in values]
        made = self._embed([None if no else v for v, no in zip(values, is_lost, strict=True)])
        if is_frame:
            # By default pandas would take a column of text, which has NaN in the place of None.
            series: Any = type(given)
            options = {"index": table.index, "dtype": object}
            return table.assign(
                **{name: series(made[name].to_pylist(), **options) for name in MADE}
            )
        for name in MADE:
            table = table.append_column(name, made[name])
        return table

    def block(self, source: Files | Objects) -> Block:
        """Embed images; rows of the block count from the first."""
        if not len(source):
            return _empty(self.embedding_size)
        collection = Collection("batch", _table(source), (), ())
        wanted = [(0, range(len(source)))]
        ((_, block),) = embedded_blocks(collection, self._embedder, wanted, decode=self._decode)
        return block

    def _embed(self, values: Sequence[Any]) -> dict[str, Any]:
        kinds = {type(value) for value in values if value is not None}
        if kinds - {str, bytes} or len(kinds) > 1:
            raise ValueError(
                f"the column {self.column!r} must hold paths or the bytes of image files; it holds "
                f"{', '.join(sorted(kind.__name__ for kind in kinds))}. Name another column."
            )
        wrong = {row: why for row, value in enumerate(values) if (why := self._wrong(value))}
        rows = [row for row in range(len(values)) if row not in wrong]
        given = [values[row] for row in rows]
        with _files(given) if bytes in kinds else nullcontext(self.source(given)) as source:
            found = self.block(source)
        errors = wrong | {rows[row]: why for row, why in found.errors.items()}
        moved = Block(
            np.array(rows, dtype=np.int64)[found.rows],
            *(found.vectors, found.thumbnails, found.places, found.digests),
            errors,
        )
        return block_columns(moved, len(values), self.embedding_size)

    def _wrong(self, value: str | bytes | None) -> str:
        """Return why a value names no image, or nothing."""
        if value is None:
            return "is missing"
        is_name = isinstance(value, str) and is_address(self._root)
        if is_name and not is_below(str(value), str(self._root)):
            return f"must lie below {self._root}, by a plain name"
        return ""

    def source(self, paths: Sequence[str]) -> Files | Objects:
        """Return the images at these paths below the root."""
        root = self._root or "."
        return Objects(str(root), paths) if is_address(root) else Files(root, paths)


@contextmanager
def _files(contents: Sequence[bytes]) -> Iterator[Files]:
    """Give the bytes of image files as files of a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        names = [f"image {number}" for number in range(len(contents))]
        for name, content in zip(names, contents, strict=True):
            (Path(folder) / name).write_bytes(content)
        yield Files(folder, names)


def _table(source: Files | Objects) -> Table:
    count = len(source)
    labels, splits = np.zeros(count, dtype=np.int64), np.full(count, "test")
    return Table("batch", source, labels, (NO_CLASS,), splits)


def _empty(embedding_size: int) -> Block:
    nothing = np.zeros(0, dtype=np.int64)
    return Block(
        nothing,
        np.zeros((0, embedding_size), dtype=np.float32),
        np.zeros(0, dtype=np.uint8),
        np.zeros((0, 4), dtype=np.int64),
        np.zeros((0, 16), dtype=np.uint8),
        {},
    )


def _arrow(batch: Any) -> Any:
    """Return columns by name, as Ray gives them by default, as a table of pyarrow."""
    pa = imported_pyarrow()
    return pa.table({name: pa.array(list(batch[name])) for name in batch})
