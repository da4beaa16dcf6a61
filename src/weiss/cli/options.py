"""Options that several commands share."""

from typing import Annotated

import typer

Root = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The folder of a named data set, or what the paths of a list start from.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting: --set train.epochs=20. Repeat."
    ),
]
MovedData = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change the recipe: --set data.name=PATH, or data.root, where the data have moved. "
        "Repeat.",
    ),
]
Nested = Annotated[
    bool,
    typer.Option(
        "--nested", help="In a folder of photos, every folder that holds images is a class."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object; messages go to standard error.")
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Accept a named data set with missing images.")
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out what cannot be used, and list it."),
]
SharedClasses = Annotated[
    bool, typer.Option("--shared-classes", help="Accept train and test that share classes.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        help="Without a run: the pretrained network, resnet50 (the default), resnet50_v1, "
        "timm:NAME, ...",
    ),
]
NetworkPooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        metavar="NAME",
        help="Without a run: how its features are pooled, avg (the default), max, avg+max or gem.",
    ),
]
NetworkWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Without a run: its weights, a file or an address. By default the public ones, "
        "downloaded once.",
    ),
]
Dimension = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        help="Only the first numbers of the embedding; a size of backbone.dimensions of the run.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Do the work on a Ray cluster that runs: auto (the one of this machine) or "
        "ray://HOST:PORT. Its machines must see --out and the data under the same paths.",
    ),
]
Needs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=NUMBER,...",
        help="With --cluster: what a unit of work needs, where the recipe does not tell: "
        "gpus=0.5,cpus=4,memory=16 (GB).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow a network or ONNX file made by others to open files and addresses outside its "
        "folder.",
    ),
]


def needs_from(text: str | None) -> dict[str, float]:
    """Return what `Needs` says, by name."""
    try:
        words = [word.partition("=") for word in (text or "").split(",") if word.strip()]
        return {name.strip(): float(number) for name, _, number in words}
    except ValueError:
        raise ValueError(
            f"--needs must read NAME=NUMBER,...; got {text!r}. Write --needs gpus=0.5,cpus=4, say."
        ) from None
