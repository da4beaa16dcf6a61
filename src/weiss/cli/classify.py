"""The command `classify`: the class of a picture, and how well an index tells its classes apart."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weiss.cli import printing
from weiss.cli.catalogue import IndexFolderArgument, Onnx
from weiss.cli.options import Device, Json, Trust
from weiss.cli.pictures import Unreadable, decoded, refuse_arguments

if TYPE_CHECKING:
    from weiss.catalogue import Catalogue, Guess, Item
    from weiss.evaluation.statistics import Interval

MOST_LINES = 10
"""Confusions and doubtful items that are printed; JSON has all."""


def classify(
    index: IndexFolderArgument,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Pictures whose class is wanted."),
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
    are confused, whose label is doubtful, and groups of items that fit no class. A picture that is
    in the index is compared with the others of its class. One that cannot be read is named on
    standard error; the others are answered.
    """
    from weiss.catalogue import Catalogue
    from weiss.catalogue.records import printable

    images = images or []
    refuse_arguments(images, k, html)
    if images and html is not None:
        raise ValueError("--html is for the doubtful items of an index. Leave IMAGE out.")
    catalogue = Catalogue.open(index, device=device, onnx=onnx, trust=trust)
    classes = [name for name, _ in catalogue.classes()]
    if not classes:
        raise ValueError(
            f"{index} must have classes; its items have none. Index a folder with one subfolder "
            "per class."
        )
    if not images:
        _measure_classes(catalogue, as_json, html)
        return
    paths: list[Path] = []
    guesses: list[list[Guess]] = []
    items: list[Item | None] = []
    unreadable = Unreadable()
    for readable, some in decoded(images, catalogue, unreadable):
        known = [catalogue.same_file(path) for path in readable]
        ids = [None if item is None else item.id for item in known]
        guesses += catalogue.classify(catalogue.embed(some), k, leave_out=ids)
        paths, items = [*paths, *readable], [*items, *known]
    seen = {
        name for name, is_seen in zip(classes, catalogue.seen_classes(), strict=True) if is_seen
    }
    trained_on = [item is not None and not seen.isdisjoint(item.class_names) for item in items]
    found = list(zip(paths, guesses, items, trained_on, strict=True))
    if as_json:
        answers = [
            {
                "query": {"image": str(path), "item": None if item is None else item.as_dict()},
                "trained_on": was_seen,
                "classes": [each.as_dict() for each in named],
            }
            for path, named, item, was_seen in found
        ]
        printing.print_json({"answers": answers, "unreadable": unreadable.as_dicts()})
        unreadable.end()
        return
    for path, named, item, _ in found:
        nearest = ", ".join(f"{each.name} {each.similarity:.3f}" for each in named)
        doubt = "" if named and named[0].fits is not False else "fits no class; nearest: "
        how = "" if item is None else " (it is in the index, and was compared with the others)"
        print(f"{printable(str(path))}: {doubt}{nearest}{how}")
    if number := sum(trained_on):
        print(
            f"Note: the network was trained on the class of {number:,} of these {len(paths):,} "
            "pictures, which flatters it; new photos may do worse."
        )
    unreadable.end()


def class_report(catalogue: "Catalogue") -> dict[str, Any]:
    """Return how well the classes of an index are told apart, for JSON; see docs/catalogue.md."""
    fields, seen = catalogue.class_fields(), catalogue.seen_classes()
    accuracy, unseen = fields.accuracy_interval(), fields.accuracy_interval(~seen)
    impostors = fields.impostor_interval()
    names = [name for name, is_seen in zip(fields.names, seen, strict=True) if is_seen]
    return {
        "classes": len(fields.names),
        "trained_on": names,
        "measured": int(fields.measured.sum()),
        **_with_ends("accuracy", accuracy),
        **_with_ends("accuracy_unseen", unseen),
        "level": fields.level,
        **_with_ends("impostor_rate", impostors),
        "confusions": [
            {"class": own, "taken_for": other, "count": count}
            for own, other, count in fields.confusions()
        ],
        "doubtful": [
            {**item.as_dict(), "nearer_to": nearer, "own": own, "other": other}
            for item, nearer, own, other in catalogue.doubtful()
        ],
        "unknown": [[item.as_dict() for item in group] for group in catalogue.unknown()],
    }


def _with_ends(name: str, found: "Interval | None") -> dict[str, Any]:
    ends = None if found is None else [found.low, found.high]
    return {name: None if found is None else found.mean, f"{name}_interval": ends}


def _measure_classes(catalogue: "Catalogue", as_json: bool, html: Path | None) -> None:
    """Print how well the classes of an index are told apart."""
    from weiss._base.checks import some

    found = class_report(catalogue)
    if html is not None:
        from weiss.catalogue.gallery_page import write_doubtful

        write_doubtful(html, catalogue)
    if as_json:
        printing.print_json(found)
    else:
        print(f"{catalogue.name}: {found['classes']:,} classes")
        print_class_report(found)
        for number, group in enumerate(found["unknown"][:MOST_LINES], 1):
            names = [item["name"] for item in group]
            items = "1 item" if len(group) == 1 else f"{len(group):,} items"
            print(f"Unknown {number}, {items} without a class: {some(names)}")
    if html is not None:
        print(f"Wrote {html}", file=sys.stderr if as_json else sys.stdout)


def print_class_report(found: dict[str, Any]) -> None:
    """Print what `class_report` returns, as far as a terminal has room for it."""
    doubtful, measured = found["doubtful"], found["measured"]
    if not measured:
        print("Nothing can be measured: no class has a second item.")
        return
    if found["classes"] < 2:
        print("Nothing can be measured: there is no other class to be confused with.")
        return
    print(
        f"{measured - len(doubtful):,} of {measured:,} items lie nearest to their own class, each "
        f"without its own part in it: {_rate(found, 'accuracy')}"
    )
    if found["trained_on"]:
        number, of = len(found["trained_on"]), found["classes"]
        rest = f"; the others alone: {_rate(found, 'accuracy_unseen')}" if of > number else ""
        which = "all of them" if number == of else f"{number:,} of the {of:,} classes"
        print(f"Note: the network was trained on {which}, which flatters it{rest}")
    if found["level"] is not None:
        print(
            f"a picture fits a class from similarity {found['level']:.3f} on: 95 % of the items "
            f"do; {_rate(found, 'impostor_rate')} would fit another class if theirs were absent"
        )
    for each in found["confusions"][:MOST_LINES]:
        lie = "is" if each["count"] == 1 else "are"
        print(f"  {each['count']:,} of {each['class']} {lie} nearer to {each['taken_for']}")
    if rest := found["confusions"][MOST_LINES:]:
        print(f"  and {sum(each['count'] for each in rest):,} more items: --json lists the classes")
    if doubtful:
        print("Doubtful labels, the clearest first:")
    for each in doubtful[:MOST_LINES]:
        print(
            f"  {each['name']}: nearer to {each['nearer_to']} ({each['other']:.3f}) than to its "
            f"own class ({each['own']:.3f})"
        )
    if (more := len(doubtful) - MOST_LINES) > 0:
        print(f"  and {more:,} more: --json lists them, --html FILE shows them")


def _rate(found: dict[str, Any], name: str) -> str:
    """Return a rate with its interval in words, and no more digits than that supports."""
    from weiss.evaluation.statistics import percent

    ends = found[f"{name}_interval"]
    if ends is None:
        return "not measured"
    low, high = (percent(end, ends).removesuffix(" %") for end in ends)
    return f"{percent(found[name], ends)} (95 % interval {low} to {high} %)"
