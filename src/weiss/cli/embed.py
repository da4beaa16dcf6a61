"""The command embed: vectors of a collection in Parquet files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from weiss.cli.catalogue import RECIPE, refuse_absent_data
from weiss.cli.options import (
    Cluster,
    Device,
    Needs,
    Nested,
    NetworkName,
    NetworkPooling,
    NetworkWeights,
    Quiet,
    Root,
    Trust,
    needs_from,
)

EMBED_HELP = "\n\n".join(
    (
        "Embed a collection of images by the network of a run into Parquet files. Without RUN a "
        "pretrained network embeds, as it is.",
        "IMAGES is what `weiss index` takes. If it is interrupted, the same command continues. "
        "Started several times at once, on several GPUs or machines that share --out, the "
        "commands share the work. On a Ray cluster one command starts them all: --cluster. "
        "`weiss index` takes the folder in the place of IMAGES.",
        "Examples:",
        "weiss embed runs/photos photos/ --out photos.vectors",
        "weiss embed photos/ --out photos.vectors",
        "torchrun --nproc-per-node 8 -m weiss embed runs/photos photos/ --out photos.vectors",
        "weiss embed runs/photos s3://bucket/photos --out /shared/photos.vectors --cluster auto",
        "weiss index photos.vectors --out photos.index",
    )
)


def embed(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run folder, whose network embeds.")
    ] = None,
    images: Annotated[
        str | None, typer.Argument(metavar="IMAGES", help="What to embed; see above.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.")] = None,
    backbone: NetworkName = None,
    weights: NetworkWeights = None,
    pooling: NetworkPooling = None,
    root: Root = None,
    split: Annotated[str, typer.Option(help="all, or a part of the data: test, train.")] = "all",
    nested: Nested = False,
    class_name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="The class of a folder without subfolders."),
    ] = None,
    shard_items: Annotated[
        int | None, typer.Option(help="Images a file; 2048 or a little more by default.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a forward pass. By default the recipe's.")
    ] = None,
    cluster: Cluster = None,
    needs: Needs = None,
    device: Device = "auto",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Embed images; the text is `EMBED_HELP`."""
    if out is None:
        raise ValueError("--out must name the folder to write. Add it: --out photos.vectors")
    if run is None:
        raise ValueError(f"IMAGES must be given. For example: weiss embed photos/ --out {out}")
    network = (backbone, weights, pooling)
    if images is None and (Path(run) / RECIPE).is_file():
        raise ValueError(f"IMAGES must be given; {run} is a run. Add the images behind it.")
    if images is not None and any(network):
        raise ValueError(
            "--backbone, --weights and --pooling must be left out with RUN, whose network embeds."
        )
    from weiss._base.interrupts import StoppedError
    from weiss._base.memory import keep_freed_memory
    from weiss.catalogue import embed_images

    keep_freed_memory()

    options: dict[str, Any] = {"root": root, "split": split, "nested": nested, "quiet": quiet}
    options |= {"class_name": class_name, "shard_items": shard_items, "batch_size": batch_size}
    options |= {"device": device, "trust": trust, "cluster": cluster, "needs": needs_from(needs)}
    try:
        if images is not None:
            embed_images(run, images, out, **options)
            return
        import tempfile

        from weiss.runs import pretrained_run

        refuse_absent_data("IMAGES", run, root)
        with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
            made = pretrained_run(Path(folder) / "run", *network)
            embed_images(made.folder, run, out, **{**options, "trust": True})
    except KeyboardInterrupt:
        raise StoppedError(f"Finished files in {out} are kept. Start it again.") from None
