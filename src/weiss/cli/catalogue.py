"""Commands around a catalogue: index, search, serve, export.

As in `cli`, everything heavy is imported inside.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weiss.cli import printing
from weiss.cli.options import (
    Device,
    Dimension,
    Json,
    Nested,
    NetworkName,
    NetworkPooling,
    NetworkWeights,
    Quiet,
    Root,
    Trust,
)
from weiss.cli.pictures import Unreadable, decoded, refuse_arguments

if TYPE_CHECKING:
    from weiss.catalogue import Catalogue, Hit

RECIPE = "recipe.toml"
"""By which a run folder is known, as in `weiss.runs.folder`, which takes long to import."""
EMBEDDINGS, MODEL_FOLDER = "embeddings.json", "model"
"""By which a folder of embeddings is known, as in `weiss.catalogue.embeddings_folder`."""

INDEX_HELP = "\n\n".join(
    (
        "Embed a collection of images by the network of a run, so that it can be searched. Without "
        "RUN a pretrained network embeds, as it is.",
        "IMAGES is a folder of images, or one with a subfolder for each class; a CSV, TSV or "
        "Parquet list with the columns path and label; or the name of a data set. Further columns "
        "of a list are kept: hits show them, and searches filter by them. Images that "
        "cannot be read are left out and listed. If it is interrupted, the same command continues.",
        "A folder of `weiss embed` in the place of IMAGES has the vectors already.",
        "Examples:",
        "weiss index runs/photos photos/ --out photos.index",
        "weiss index photos/ --out photos.index",
        "weiss index photos.vectors --out photos.index   (a folder of `weiss embed`)",
        "weiss index photos/ --out photos.index --backbone resnet50_v1 --weights FILE",
        "weiss index --add more/ --out photos.index",
        "weiss index --add new/kiwi --class kiwi --out photos.index",
        "weiss index --remove lamp/3.jpg --remove class:chair --out photos.index",
        "weiss index --check --out photos.index",
        "weiss index --compact --out photos.index",
    )
)

Onnx = Annotated[
    Path | None,
    typer.Option(help="Embed by this ONNX file, an export of the index's model."),
]
USED = {
    "RUN IMAGES": {"run", "images", "replace", "root", "split", "nested", "class_name", "store"}
    | {"kind", "false_match_rate", "threshold", "batch_size", "device", "quiet", "trust"}
    | {"dimension"},
    "--add": {"run", "add", "root", "split", "nested", "class_name", "batch_size", "device"}
    | {"quiet", "trust"},
    "--remove": {"remove", "device", "quiet"},
    "--check": {"check", "quiet"},
    "--compact": {"compact", "quiet"},
}
USED["EMBEDDINGS"] = USED["RUN IMAGES"] - {"root", "split", "nested", "class_name", "batch_size"}
USED["EMBEDDINGS"] -= {"dimension"}
USED["IMAGES"] = USED["RUN IMAGES"] - {"dimension"} | {"backbone", "weights", "pooling"}
"""What each way to make or change an index looks at, beside --out."""
IndexFolderArgument = Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")]


def index(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run folder, whose network embeds.")
    ] = None,
    images: Annotated[
        str | None, typer.Argument(metavar="IMAGES", help="What to index; see above.")
    ] = None,
    backbone: NetworkName = None,
    weights: NetworkWeights = None,
    pooling: NetworkPooling = None,
    out: Annotated[Path | None, typer.Option(help="The index folder.")] = None,
    add: Annotated[
        str | None,
        typer.Option(metavar="IMAGES", help="Add these to the index in --out, by its own model."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="Remove a name, an id, or class:NAME. Repeat."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare every file with its checksum. If index.json is of an old version and has "
            "none, write it.",
        ),
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Write it anew without traces of removed items.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing index.")] = False,
    root: Root = None,
    split: Annotated[str, typer.Option(help="all, or a part of the data: test, train.")] = "all",
    nested: Nested = False,
    class_name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="The class of a folder without subfolders."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(help="faiss, or a database: milvus:host:19530, or milvus:items.db, a file."),
    ] = "faiss",
    kind: Annotated[
        str,
        typer.Option(
            help="auto, flat (exact), int8 (exact, a quarter of the memory), binary (a 32nd), ivf, "
            "hnsw; auto is exact below 100,000 items."
        ),
    ] = "auto",
    false_match_rate: Annotated[
        float, typer.Option(help="The share of impostors that may find a match, for the threshold.")
    ] = 0.05,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="SIMILARITY", help="From where on a hit is a match. By default it is measured."
        ),
    ] = None,
    dimension: Dimension = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a forward pass. By default the recipe's.")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Make or change an index; the text is `INDEX_HELP`."""
    said = {"--add": add is not None, "--remove": remove, "--check": check, "--compact": compact}
    changes = [option for option, is_said in said.items() if is_said]
    if out is None:
        raise ValueError("--out must name the index folder. Add it: --out photos.index")
    if len(changes) > 1 or (changes and images is not None):
        raise ValueError(
            f"an index must be made ([RUN] IMAGES), or changed by one of {', '.join(said)}; "
            "got several. Do them one after the other."
        )
    rate_source = context.get_parameter_source("false_match_rate")
    if threshold is not None and rate_source is not None and rate_source.name == "COMMANDLINE":
        raise ValueError(
            "--threshold and --false-match-rate must not both be given: the rate sets a threshold. "
            "Leave one out."
        )
    is_alone = not changes and run is not None and images is None
    if not changes and (run is None or (is_alone and (Path(run) / RECIPE).is_file())):
        raise ValueError(
            "RUN and IMAGES must both be given to make an index, or IMAGES alone for a pretrained "
            f"network. For example: weiss index runs/photos photos/ --out {out}"
        )
    has_vectors = is_alone and run is not None and (Path(run) / EMBEDDINGS).is_file()
    made = "EMBEDDINGS" if has_vectors else "IMAGES" if is_alone else "RUN IMAGES"
    _refuse_unused(context, changes[0] if changes else made)
    if check:
        from weiss.catalogue.index_folder import IndexFolder

        found = IndexFolder(out).verify()
        if not quiet:
            print(f"{out}: {found}")
        return
    from weiss._base.interrupts import StoppedError
    from weiss._base.memory import keep_freed_memory
    from weiss.catalogue import add_items, compact_index, remove_items

    keep_freed_memory()

    common: dict[str, Any] = {"device": device, "quiet": quiet}
    embedding: dict[str, Any] = {"root": root, "split": split, "batch_size": batch_size}
    embedding |= {"nested": nested, "class_name": class_name, "trust": trust, **common}
    try:
        if remove:
            remove_items(out, remove, **common)
        elif compact:
            compact_index(out, quiet=quiet)
        elif add is not None:
            add_items(out, add, run=run, **embedding)
        else:
            assert run is not None
            making = {
                **{"store": store, "kind": kind, "false_match_rate": false_match_rate},
                **{"threshold": threshold, "replace_old": replace, **embedding},
            }
            if has_vectors:
                _index_by(Path(run) / MODEL_FOLDER, None, run, out, making)
            elif images is not None:
                _index_by(Path(run), dimension, images, out, making)
            else:
                network = (backbone, weights, pooling)
                _index_alone(run, out, network, {**making, "trust": True})
    except KeyError as error:  # an item that is not there; a mistake like any other
        raise ValueError(str(error)) from error
    except KeyboardInterrupt:
        kept = "" if remove or compact else "What is embedded is kept. "
        raise StoppedError(
            f"{out} is whole. {kept}Start the same command again to finish the change."
        ) from None


def _index_by(
    run: Path, dimension: int | None, images: str, out: Path, making: dict[str, Any]
) -> None:
    """Make an index by the network of a run, with the first numbers of its embedding if asked."""
    from weiss.catalogue import build_index

    if dimension is None:
        build_index(run, images, out, **making)
        return
    from weiss.catalogue.building import refuse_folder
    from weiss.catalogue.index_folder import IndexFolder
    from weiss.runs import Run
    from weiss.runs.dimension import at_dimension

    refuse_folder(IndexFolder(out), {"RUN": run}, making["replace_old"])
    with at_dimension(Run(run, trust=making["trust"]), dimension) as short:
        build_index(short.folder, images, out, **making)


def _index_alone(
    images: str, out: Path, network: tuple[str | None, ...], making: dict[str, Any]
) -> None:
    """Make an index by a pretrained network, which the user names and so trusts."""
    import tempfile

    from weiss.catalogue import build_index
    from weiss.catalogue.building import checked_options, refuse_folder
    from weiss.catalogue.index_folder import IndexFolder
    from weiss.data.object_storage import is_address
    from weiss.runs import pretrained_run

    # Weights may have to be downloaded: whatever is wrong is said before.
    refuse_absent_data("IMAGES", images, making["root"])
    named = {} if is_address(images) else {"IMAGES": Path(images)}
    refuse_folder(IndexFolder(out), named, making["replace_old"])
    options = ("store", "kind", "batch_size", "false_match_rate", "threshold", "device")
    checked_options(IndexFolder(out), *(making[name] for name in options))
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        run = pretrained_run(Path(folder) / "run", *network)
        build_index(run.folder, images, out, **making)


def refuse_absent_data(name: str, given: str, root: str | Path | None) -> None:
    """Refuse data that are not there or hold no image, before weights are downloaded for them."""
    from weiss._base.checks import path_suggestion
    from weiss.catalogue.collection import refuse_no_images
    from weiss.data import DATASETS, OFFICIAL, open_table
    from weiss.data.object_storage import is_address

    if given in OFFICIAL and root is None:
        open_table(given)  # which says what is missing
    if given in DATASETS or is_address(given):
        return
    if Path(given).is_dir():
        refuse_no_images(Path(given))
    if Path(given).exists():
        return
    beside = sorted(Path(given).parent.glob("*"))
    raise ValueError(
        f"{name} must be a folder, a list of files, or a data set ({', '.join(DATASETS)}); there "
        f"is no {given}.{path_suggestion(given, beside, DATASETS)}"
    )


def _refuse_unused(context: typer.Context, action: str) -> None:
    """Refuse options that this action ignores."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        said = source is not None and source.name == "COMMANDLINE"
        if said and name != "out" and name not in USED[action]:
            word = parameter.opts[0] if parameter.param_type_name == "option" else name.upper()
            raise ValueError(f"{word} must be left out with {action}, which does not look at it.")


def search(
    index: IndexFolderArgument,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Pictures to look for, one or more.")
    ],
    k: Annotated[int, typer.Option("-k", help="How many items to find.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only items with it: class=kiwi, 'price<5'. A column of the list that was indexed "
            "and = != < <= > or >=. Repeat: all must hold.",
        ),
    ] = None,
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with the pictures.")
    ] = None,
    onnx: Onnx = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Find the items of an index that are nearest to a picture.

    A picture that cannot be read is named on standard error; the others are answered.
    """
    from weiss.catalogue import Catalogue, search_answer
    from weiss.catalogue.records import printable

    refuse_arguments(images, k, html)
    where = where or []
    refuse_conditions(where)
    catalogue = Catalogue.open(index, device=device, onnx=onnx, trust=trust)
    catalogue.matching(where)  # refuses what does not fit the index before anything is embedded
    paths: list[Path] = []
    found: list[list[Hit]] = []
    pixels, unreadable = [], Unreadable()
    for readable, some in decoded(images, catalogue, unreadable):
        paths += readable
        found += catalogue.search(catalogue.embed(some), k, where=where)
        pixels += some if html is not None else []
    if html is not None:
        from weiss.catalogue.gallery_page import write_gallery

        names = [printable(path.name) for path in paths]
        write_gallery(html, catalogue, list(zip(names, pixels, found, strict=True)), where=where)
    if as_json:
        answers = [
            {"query": {"image": str(path)}, **search_answer(hits, catalogue.threshold)}
            for path, hits in zip(paths, found, strict=True)
        ]
        printing.print_json({"answers": answers, "unreadable": unreadable.as_dicts()})
    else:
        for path, hits in zip(paths, found, strict=True):
            _print_hits(printable(str(path)), hits, catalogue, where)
    if html is not None:
        print(f"Wrote {html}", file=sys.stderr if as_json else sys.stdout)
    unreadable.end()


def refuse_conditions(where: Sequence[str]) -> None:
    """Refuse what is no condition, before anything large is opened."""
    from weiss.catalogue import ConditionError
    from weiss.catalogue.filtering import Condition

    for each in where:
        try:
            Condition.parse(each)
        except ConditionError as error:
            # A shell takes < and > for itself, and what follows them.
            hint = "" if {*"<>"} & {*each} else " On a command line put it in quotes."
            raise ConditionError(f"{error}{hint}") from None


def serve(
    index: IndexFolderArgument,
    host: Annotated[
        str,
        typer.Option(
            help="Where to listen. An address that others reach needs --token or --public."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Visitors come by this name, and by no other. Repeat."),
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Visitors need the secret in this file: a line of text."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Show every item to anybody who reaches the address.")
    ] = False,
    originals: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Show the photos themselves: the folder that was indexed. Repeat.",
        ),
    ] = None,
    onnx: Onnx = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Search an index in a browser, and by a JSON API, until Ctrl-C."""
    from weiss.server import serve as serve_index

    serve_index(
        index,
        host=host,
        port=port,
        allow_hosts=allow_host or (),
        token=None if token is None else _secret(token),
        public=public,
        device=device,
        onnx=onnx,
        trust=trust,
        originals=originals or (),
    )


def _secret(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"--token must name a file with the secret; {file} cannot be read ({error}). Make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe())' > secret.txt"
        ) from error


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The file: .onnx or .safetensors.")],
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Compare it with the run's network."),
    ] = True,
    fields: Annotated[
        bool, typer.Option("--fields", help="With the mean fields; for .safetensors.")
    ] = False,
    dimension: Dimension = None,
    trust: Trust = False,
) -> None:
    """Write the network of a run to a file for others: ONNX, or safetensors; and a model card."""
    from weiss.catalogue.export import export_run
    from weiss.runs import Run
    from weiss.runs.dimension import at_dimension

    with at_dimension(Run(run, trust=trust), dimension) as short:
        print(export_run(short, out, check=check, fields=fields).describe())


def _print_hits(
    name: str, hits: Sequence["Hit"], catalogue: "Catalogue", where: Sequence[str]
) -> None:
    """Print what was found for a picture as a table, and what to think of it."""
    from weiss.catalogue.records import in_short, verdict

    print(f"{name}: {verdict(hits, catalogue.threshold, where)}")
    columns = [each for each in catalogue.columns if any(each in h.item.columns for h in hits)]
    rows = [("", "rank", "similarity", "distance", "class", "name", *columns)]
    for rank, hit in enumerate(hits, 1):
        sign = "*" if hit.is_match else ""
        classes = ", ".join(hit.item.class_names) or "-"
        numbers = (f"{hit.similarity:.4f}", f"{hit.distance:.4f}")
        known = hit.item.columns
        more = [in_short(known[each]) if each in known else "-" for each in columns]
        rows.append((sign, str(rank), *numbers, classes, hit.item.name, *more))
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = list(zip(row, widths, strict=True))
            right = [cell.rjust(width) for cell, width in cells[:4]]
            left = [cell.ljust(width) for cell, width in cells[4:]]
            print("  ".join([*right, *left]).rstrip())
    if any(hit.is_match for hit in hits):
        print("* a match")
