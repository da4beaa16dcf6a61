"""The command `classify`: the class of a picture, and how well an index tells its classes apart."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weiss.cli import printing
from weiss.cli.catalogue import IndexFolderArgument, Onnx, refuse_arguments
from weiss.cli.options import Device, Json, Trust

if TYPE_CHECKING:
    from weiss.catalogue import Catalogue

MOST_LINES = 10
"""Confusions and doubtful items that are printed; JSON has all."""


def classify(
    index: IndexFolderArgument,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[IMAGE...]", help="Pictures whose class is wanted."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many classes to name.")] = 3,
    as_json: Json = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Without IMAGE: also a page with doubtful items."),
    ] = None,
    onnx: Onnx = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Name the class of a picture; without one, measure the classes of an index.

    A class is recognised by its field, the mean direction of its items: classes that were added
    after training too. Without IMAGE: how many items lie nearest to their own class, which classes
    are confused, whose label is doubtful, and groups of items that fit no class.
    """
    from weiss._base.images import decode
    from weiss.catalogue import Catalogue
    from weiss.catalogue.networks import AT_ONCE
    from weiss.catalogue.records import printable

    images = images or []
    refuse_arguments(images, k, html)
    if images and html is not None:
        raise ValueError("--html is for the doubtful items of an index. Leave IMAGE out.")
    catalogue = Catalogue.open(index, device=device, onnx=onnx, trust=trust)
    if not catalogue.classes():
        raise ValueError(
            f"{index} must have classes; its items have none. Index a folder with one subfolder "
            "per class."
        )
    if not images:
        _measure_classes(catalogue, as_json, html)
        return
    guesses = []
    for start in range(0, len(images), AT_ONCE):
        some = [decode(path, short_side=catalogue.short_side) for path in images[start:][:AT_ONCE]]
        guesses += catalogue.classify(catalogue.embed(some), k)
    if as_json:
        answers = [
            {"query": {"image": str(path)}, "classes": [each.as_dict() for each in found]}
            for path, found in zip(images, guesses, strict=True)
        ]
        printing.print_json({"answers": answers})
        return
    for path, found in zip(images, guesses, strict=True):
        named = ", ".join(f"{each.name} {each.similarity:.3f}" for each in found)
        doubt = "" if found[0].fits is not False else "fits no class; nearest: "
        print(f"{printable(str(path))}: {doubt}{named}")


def _measure_classes(catalogue: "Catalogue", as_json: bool, html: Path | None) -> None:
    """Print how well the classes of an index are told apart."""
    from weiss._base.checks import some

    fields, doubtful = catalogue.class_fields(), catalogue.doubtful()
    unknown = catalogue.unknown()
    if html is not None:
        from weiss._base.images import decode
        from weiss.catalogue.gallery_page import write_gallery

        searches = []
        for item, nearer, own, other in doubtful:
            title = f"{item.name}: nearer to {nearer} ({other:.3f}) than to its own ({own:.3f})"
            hits = catalogue.search(catalogue.vector(item.id)[None], 6, leave_out=[item.id])[0]
            searches.append((title, decode(catalogue.thumbnail(item.id)), hits))
        write_gallery(html, catalogue, searches)
    measured = int(fields.measured.sum())
    if as_json:
        found = {
            "classes": len(fields.names),
            "measured": measured,
            "accuracy": fields.accuracy() if measured else None,
            "level": fields.level,
            "impostor_rate": None if fields.level is None else fields.impostor_rate(),
            "confusions": [
                {"class": own, "taken_for": other, "count": count}
                for own, other, count in fields.confusions()
            ],
            "doubtful": [
                {**item.as_dict(), "nearer_to": nearer, "own": own, "other": other}
                for item, nearer, own, other in doubtful
            ],
            "unknown": [[item.as_dict() for item in group] for group in unknown],
        }
        printing.print_json(found)
        return
    print(f"{catalogue.name}: {len(fields.names):,} classes")
    if not measured:
        print("Nothing can be measured: no class has a second item.")
        return
    right = measured - len(doubtful)
    print(
        f"{right:,} of {measured:,} items ({100 * right / measured:.1f} %) lie nearest to their "
        "own class, each without its own part in it"
    )
    if fields.level is not None:
        print(
            f"a picture fits a class from similarity {fields.level:.3f} on: 95 % of the items do; "
            f"{100 * fields.impostor_rate():.1f} % would fit another class if theirs were absent"
        )
    for name, taken_for, count in fields.confusions()[:MOST_LINES]:
        print(f"  {count:,} of {name} are nearer to {taken_for}")
    if doubtful:
        print("Doubtful labels, the clearest first:")
    for item, nearer, own_similarity, other_similarity in doubtful[:MOST_LINES]:
        print(f"  {item.name}: {nearer} {other_similarity:.3f}, its own {own_similarity:.3f}")
    more = len(doubtful) - MOST_LINES
    if more > 0:
        print(f"  and {more:,} more: --json lists them, --html FILE shows them")
    for number, group in enumerate(unknown[:MOST_LINES], 1):
        names = [item.name for item in group]
        print(f"Unknown {number}, {len(group):,} items without a class: {some(names)}")
    if html is not None:
        print(f"Wrote {html}")
