"""The steps that every change of an index shares: embed, switch, say what was done."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from weiss.catalogue.collection import Collection
from weiss.catalogue.derived import Derived
from weiss.catalogue.embedding import Embedder, embed_collection
from weiss.catalogue.folder import SKIPPED, IndexFolder, Segment
from weiss.catalogue.index_card import index_card
from weiss.catalogue.segments import Block, write_segment
from weiss.files import replacing
from weiss.networks import Network
from weiss.progress import Bar
from weiss.runs import Run

BATCH = 128
"""Pictures a forward pass, where the recipe says nothing."""


@dataclass(frozen=True)
class Change:
    """What became of an index.

    Attributes:
        num_items: how many it has now.
        num_added: how many came.
        num_removed: how many went.
        skipped: what could not be read: its name, and why.
        already: names that were there with the same content, and were left alone.
        lines: what to say about it.
    """

    num_items: int
    num_added: int
    num_removed: int
    skipped: tuple[str, ...]
    already: tuple[str, ...]
    lines: tuple[str, ...]


def embedder_of(network: Network, run: Run, batch_size: int | None) -> Embedder:
    """Return what embeds a collection by a network.

    Args:
        network: computed by torch.
        run: whose recipe says how many pictures a forward pass takes.
        batch_size: how many, if somebody said.
    """
    model = network.model
    assert model is not None
    size = batch_size or run.recipe().get("evaluate", {}).get("batch_size") or BATCH
    device = next(model.parameters()).device
    return Embedder(
        model,
        device,
        network.preprocessing,
        network.embedding_size,
        network.fingerprint,
        int(size),
    )


def embed_segment(
    index: IndexFolder,
    collection: Collection,
    embedder: Embedder,
    first: int,
    num_workers: int | None,
    quiet: bool,
) -> tuple[Segment, tuple[str, ...], float]:
    """Embed a collection into a segment.

    Args:
        index: the index folder.
        collection: what to embed.
        embedder: by what.
        first: the id of the first item.
        num_workers: decoding processes.
        quiet: show no bar.

    Returns:
        The segment; what was skipped, a line each; and how many images a second.
    """
    begun = time.monotonic()
    total = len(collection.table)
    with Bar(total, f"embedding {collection.name}", unit="images", patience=1.0) as bar:
        paths = embed_collection(
            collection,
            embedder,
            index.building,
            num_workers=num_workers,
            advance=(lambda worth: None) if quiet else bar.advance,
        )
    speed = total / max(time.monotonic() - begun, 1e-9)
    rows, why = 0, dict[int, str]()
    for path in paths:
        count, errors = Block.summary(path)
        rows += count
        why |= errors
    skipped = [f"{collection.names[row]}: {text}" for row, text in sorted(why.items())]
    skipped = [*collection.remarks, *skipped]
    if not rows:
        shutil.rmtree(index.building, ignore_errors=True)
        raise ValueError(
            f"at least one image of {collection.name} must be readable; none of {total:,} is:\n  "
            + "\n  ".join(skipped[:10])
        )
    segment = write_segment(
        index,
        first,
        (Block.read(path) for path in paths),
        rows,
        embedder.embedding_size,
        collection.names,
        collection.classes,
    )
    return segment, tuple(skipped), speed


def finish(index: IndexFolder, done: Derived, skipped: tuple[str, ...] | None) -> None:
    """Switch to the new state, and only then forget how it came about."""
    if skipped is not None:
        with replacing(index.path(SKIPPED)) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in skipped), encoding="utf-8")
    index.switch(done.manifest, index_card(done.manifest, done.num_classes, len(skipped or ())))
    shutil.rmtree(index.building, ignore_errors=True)


def sayer(quiet: bool) -> Callable[[str], None]:
    """Return what prints a line, or does not."""
    return (lambda line: None) if quiet else (lambda line: print(line, flush=True))


def told(change: Change, index: IndexFolder, say: Callable[[str], None]) -> Change:
    """Say what became of an index."""
    for line in change.lines:
        say(line)
    if change.skipped:
        say(f"{len(change.skipped):,} could not be read and are left out ({SKIPPED} lists them):")
        for line in change.skipped[:10]:
            say(f"  {line}")
        if len(change.skipped) > 10:
            say(f"  and {len(change.skipped) - 10:,} more")
    say(f"Wrote {index.folder}. Search it: weiss search {index.folder} IMAGE")
    return change
