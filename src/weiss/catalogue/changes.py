"""The steps that every change of an index shares: embed, switch, say what was done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weiss._base.files import replacing
from weiss._base.progress import Bar
from weiss.catalogue.collection import Collection
from weiss.catalogue.derived import Derived
from weiss.catalogue.embedding import Embedder, embed_collection
from weiss.catalogue.folder import SKIPPED, IndexFolder, Manifest, Segment
from weiss.catalogue.index_card import index_card
from weiss.catalogue.networks import Network
from weiss.catalogue.segments import Block, write_segment
from weiss.catalogue.tidying import clear_workspace
from weiss.runs.folder import Run

Skipped = Sequence[tuple[str, str]]
"""What is left out: names, and why."""
BATCH = 128
"""Pictures a forward pass, where the recipe says nothing."""


@dataclass(frozen=True)
class Change:
    """What became of an index.

    Attributes:
        num_items: how many it has now.
        num_added: how many came.
        num_removed: how many went.
        skipped: what this change could not read: its name, and why.
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
) -> tuple[Segment, Skipped, str]:
    """Embed a collection into a segment.

    Args:
        index: the index folder.
        collection: what to embed.
        embedder: by what.
        first: the id of the first item.
        num_workers: decoding processes.
        quiet: show no bar.

    Returns:
        The segment; what was skipped; and how fast it was embedded, in words.
    """
    begun = time.monotonic()
    total = len(collection.table)
    with Bar(total, f"embedding {collection.name}", unit="images", delay=1.0) as bar:
        paths, before = embed_collection(
            collection,
            embedder,
            index.building,
            num_workers=num_workers,
            advance=(lambda worth: None) if quiet else bar.advance,
        )
    speed = (total - before) / max(time.monotonic() - begun, 1e-9)
    how_fast = f"embedded at {speed:,.0f} images/s"
    if before:
        how_fast = f"{how_fast}, {before:,} earlier" if before < total else "embedded earlier"
    rows, why = 0, dict[int, str]()
    for path in paths:
        count, errors = Block.summary(path)
        rows += count
        why |= errors
    skipped = [(collection.names[row], text) for row, text in sorted(why.items())]
    skipped = [*collection.left_out, *skipped]
    if not rows:
        clear_workspace(index.building)
        raise ValueError(
            f"at least one image of {collection.name} must be readable; none of {total:,} is:\n  "
            + "\n  ".join(in_lines(skipped[:10]))
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
    return segment, skipped, how_fast


def in_lines(skipped: Skipped) -> tuple[str, ...]:
    """Return what is left out as people read it, a line each."""
    return tuple(f"{name}: {why}" for name, why in skipped)


def read_skipped(index: IndexFolder, manifest: Manifest) -> Skipped:
    """Return what an index has left out until now."""
    if manifest.skipped is None:
        return ()
    lines = index.path(manifest.skipped).read_text(encoding="utf-8").split("\n")
    return [(name, why) for name, tab, why in (line.partition("\t") for line in lines) if tab]


def write_skipped(index: IndexFolder, skipped: Skipped) -> str | None:
    """Write what is left out to a file of the index; return its name, None if there is nothing."""
    if not skipped:
        return None
    name = index.new_name("skipped")
    with replacing(index.path(name)) as path:
        path.write_text("".join(f"{each}\t{why}\n" for each, why in skipped), encoding="utf-8")
    return name


def finish(index: IndexFolder, done: Derived, skipped: Skipped) -> None:
    """Switch to the new state, and only then forget how it came about.

    Args:
        index: the index folder.
        done: the new state.
        skipped: all that it has left out, by this change or an earlier one.
    """
    card = index_card(done.manifest, done.num_classes, len(skipped))
    index.switch(done.manifest, card, "".join(f"{line}\n" for line in in_lines(skipped)))
    clear_workspace(index.building)


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
