"""Commands around data sets: list, prepare, check, show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Grid

from weiss.cli import printing
from weiss.cli.classify import class_report, print_class_report
from weiss.cli.options import (
    AllowMissing,
    Device,
    Json,
    Nested,
    Root,
    SharedClasses,
    SkipBad,
    Trust,
)

if TYPE_CHECKING:
    from weiss.data import Table

data_app = typer.Typer(help="Data sets: list, get, check and look at them.", no_args_is_help=True)
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A name that `weiss data list` shows, a folder with one subfolder a class, or a "
        "CSV, TSV or Parquet file with the columns path, label (or labels) and perhaps split.",
    ),
]
Split = Annotated[
    str,
    typer.Option(
        help="For your own data: classes (hold out a share of the classes), stratified (a share "
        "of each class), given (the column split), all (train on everything); auto is given "
        "where there is one, else classes."
    ),
]


@data_app.command("list")
def data_list() -> None:
    """Show the data sets that have a name."""
    from weiss.data import DATASETS, OFFICIAL

    grid = Grid("name", "data set", "images", "how to get it", box=None, pad_edge=False)
    for name, title in DATASETS.items():
        official = OFFICIAL.get(name)
        if official is None:
            grid.add_row(name, title, "", "built in, drawn in seconds")
            continue
        fetched = any(archive.url for archive in official.archives)
        how = "weiss data prepare" if fetched else "by hand; prepare says how"
        grid.add_row(name, title, f"{official.num_images:,}", how)
    printing.out().print(grid)
    print("\nOr your own: a folder with one subfolder a class, or a list of files.")


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="A name that `weiss data list` shows.")],
    root: Annotated[Path, typer.Option(help="Where to put it.")],
) -> None:
    """Download a data set, or say what to fetch by hand and where to put it."""
    from weiss.data import prepare

    prepare(name, root)


@data_app.command("check")
def data_check(
    data: Data,
    root: Root = None,
    allow_missing: AllowMissing = False,
    skip_bad: SkipBad = False,
    split: Split = "auto",
    seed: Annotated[int, typer.Option(help="Which classes or images are held out.")] = 0,
    shared_classes: SharedClasses = False,
    min_images: Annotated[int, typer.Option(help="The fewest images a class may have.")] = 2,
    nested: Nested = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not decode the images: lists and counts only.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Also list labels that are doubtful by the network of this run: photos that lie "
            "nearer to the mean of another class than to that of their own.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --run: also a page with the doubtful photos."),
    ] = None,
    as_json: Json = False,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Look at all of a data set: counts, what is left out, broken images, doubtful labels."""
    if html is not None and run is None:
        raise ValueError("--html shows the labels that are doubtful by a network. Add --run RUN.")
    if html is not None and html.is_dir():
        raise ValueError(f"--html must name a file; {html} is a folder. Add a name: page.html")
    from weiss.data import OFFICIAL, Assembly, check_table, open_table

    if run is not None:
        from weiss.runs import Run

        Run(run).recipe()  # refused now, not after every image was decoded
    how = Assembly(
        split,
        seed=seed,
        shared_classes=shared_classes,
        min_images=min_images,
        skip_bad=skip_bad,
        nested=nested,
    )
    table = open_table(data, root=root, how=how, allow_missing=allow_missing)
    official = None if allow_missing or skip_bad else OFFICIAL.get(data)
    remarks = folder_remarks(data, nested)
    found = check_table(table, official, remarks=remarks, images=not quick, skip_bad=skip_bad)
    labels = None
    if run is not None:
        labels = _check_labels(run, found.table, html, device, trust)
    if as_json:
        printing.print_json(
            {
                "name": found.table.name,
                "splits": {
                    part: {"images": images, "classes": classes}
                    for part, (images, classes) in found.table.sizes().items()
                },
                "problems": found.problems,
                "remarks": found.remarks,
                "unreadable": found.unreadable,
                "labels": labels,
            }
        )
        if found.problems:
            raise typer.Exit(1)
        return
    printing.print_sizes(found.table, OFFICIAL.get(data))
    if labels is not None:
        print_class_report(labels)
    if html is not None:
        print(f"Wrote {html}")
    num_doubtful = 0 if labels is None else len(labels["doubtful"])
    printing.print_findings(found, skip_bad=skip_bad, quick=quick, num_doubtful=num_doubtful)


def _check_labels(
    run: Path, table: "Table", html: Path | None, device: str, trust: bool
) -> dict[str, Any]:
    """Return the `class_report` of a table by the network of a run; write a page of it."""
    import tempfile

    from weiss.catalogue import Catalogue, build_index
    from weiss.catalogue.gallery_page import write_doubtful

    printing.print_note(f"embedding {len(table):,} images by {run}")
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        # The threshold of an index is of no use here, nor are the data of the run.
        making: dict[str, Any] = {"device": device, "trust": trust, "quiet": True}
        build_index(run, table, Path(folder) / "index", own_items_only=True, **making)
        with Catalogue.open(Path(folder) / "index", device=device, trust=trust) as catalogue:
            if html is not None:
                write_doubtful(html, catalogue)
            return class_report(catalogue)


def folder_remarks(data: str, nested: bool) -> list[str]:
    """Return what a folder of photos has that is not taken; nothing for other data."""
    from weiss.data import DATASETS
    from weiss.data import folder_remarks as remarks_on
    from weiss.data.datasets import LISTS
    from weiss.data.object_storage import is_address

    is_folder = data not in DATASETS and Path(data).is_dir()
    is_folder = is_folder or (is_address(data) and not data.lower().endswith(LISTS))
    return remarks_on(data, nested=nested) if is_folder else []


def print_remarks(data: str, nested: bool) -> None:
    """Say on standard error what a folder of photos has that is not taken."""
    for remark in folder_remarks(data, nested):
        printing.print_note(remark)


@data_app.command("show")
def data_show(
    data: Data,
    out: Annotated[Path, typer.Option(help="The PNG file to write.")],
    root: Root = None,
    part: Annotated[str, typer.Option(help="Which split to show.")] = "train",
    classes: Annotated[int, typer.Option(help="How many classes.")] = 8,
    each: Annotated[int, typer.Option(help="How many images of each.")] = 10,
    seed: Annotated[int, typer.Option(help="Which classes.")] = 0,
    split: Split = "auto",
    allow_missing: AllowMissing = False,
    skip_bad: SkipBad = False,
    nested: Nested = False,
) -> None:
    """Draw a few images of a few classes: all of each image, reduced."""
    from weiss.data import Assembly, open_table
    from weiss.figures import draw_sheet

    if out.suffix.lower() != ".png" or out.is_dir():
        raise ValueError(f"--out must name a .png file; got {out}. Add a name that ends in .png.")
    # Images are shown even if the data cannot be trained on.
    how = Assembly(split=split, shared_classes=True, min_images=1, skip_bad=skip_bad, nested=nested)
    table = open_table(data, root=root, how=how, allow_missing=allow_missing)
    draw_sheet(table.part(part), out, num_classes=classes, each=each, seed=seed)
    print(f"Wrote {out}")
