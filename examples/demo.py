"""Learn to recognise characters nobody has shown: the main job from end to end, in minutes.

Half of the glyphs' characters train a small network, with MFCWMS and again with ProxyAnchor. Then
each image of the other half, characters that training never saw, looks for the images of its own
character in other fonts. Raw pixels and the untrained network do the same, to compare with. At last
these characters become a catalogue that can be searched by picture.

    python examples/demo.py --out demo
"""

import argparse
import shutil
from pathlib import Path

import torch
from torch import Tensor

from weiss import LOSSES, figures
from weiss.catalogue import build_index
from weiss.data import CentreCrop, Pipeline, Table, open_table
from weiss.evaluation import Retrieval, evaluate_retrieval
from weiss.reporting import Page, choose_queries, retrieval_rows
from weiss.runs import Recipe, Run, build_backbone, recipe_from
from weiss.training import train

MOVED, STILL = "glyphs", "glyphs_still"
TITLES = {MOVED: "moved a little", STILL: "not moved"}
COMPARED = ("mf_cwms", "proxy_anchor")


def pixels_of(table: Table) -> Tensor:
    """Return each image as the vector ``(1024,)`` of its pixels, from 0 to 1."""
    return torch.from_numpy(table.source.pixels[:]).flatten(1).float() / 255  # type: ignore[attr-defined]


@torch.no_grad()
def embeddings_of(model: torch.nn.Module, table: Table) -> Tensor:
    """Return the embedding ``(N, D)`` of every image of a table."""
    batches = Pipeline(table).evaluation(CentreCrop(32, 32), batch_size=512)
    return torch.cat([model(batch.images) for batch in batches])


def train_both(out: Path, epochs: int | None) -> tuple[Recipe, dict[str, Run]]:
    """Train with each loss; return the recipe of the first and the runs."""
    runs, first = {}, None
    for loss in COMPARED:
        overrides = [f"loss.name={loss}", "train.device=cpu"]
        overrides += [] if epochs is None else [f"train.epochs={epochs}", "schedule.ramp_epochs=0"]
        recipe = recipe_from("glyphs", overrides)
        first = first or recipe
        folder = out / loss
        if Run(folder).exists():
            shutil.rmtree(folder)  # the last demo's
        train(recipe, folder)
        print()
        runs[LOSSES[loss].title] = Run(folder)
    assert first is not None
    return first, runs


def measure(
    recipe: Recipe, runs: dict[str, Run], tests: dict[str, Table]
) -> dict[str, list[Retrieval]]:
    """Return for each way of comparing images what it finds, in each test set."""
    torch.manual_seed(recipe.seed)
    untrained = build_backbone(recipe.as_dict()["backbone"]).eval()
    networks = {"untrained network": untrained} | {t: run.model() for t, run in runs.items()}
    found: dict[str, list[Retrieval]] = {}
    for table in tests.values():
        labels = torch.from_numpy(table.labels)
        vectors = {"raw pixels": pixels_of(table)}
        vectors |= {title: embeddings_of(model, table) for title, model in networks.items()}
        for title, each in vectors.items():
            found.setdefault(title, []).append(evaluate_retrieval(each, labels))
    return found


def table_of(found: dict[str, list[Retrieval]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of scores, in per cent."""
    header = [""]
    for title in TITLES.values():
        header += [f"MAP@R, {title}", f"P@1, {title}"]
    rows = []
    for title, each in found.items():
        row = [title]
        for one in each:
            summary = one.summary()
            row += [f"{100 * summary['map_at_r']:.1f}", f"{100 * summary['precision_at_1']:.1f}"]
        rows.append(row)
    return header, rows


def write_page(
    out: Path, runs: dict[str, Run], found: dict[str, list[Retrieval]], tests: dict[str, Table]
) -> Path:
    """Write the page: scores, curves, order parameters, what is found for some characters."""
    names = ("raw pixels", "untrained network")
    levels = {name: 100 * found[name][0].summary()["map_at_r"] for name in names}
    picture = out / "comparison.png"
    curves = {title: [run.metrics()] for title, run in runs.items()}
    figures.averaged_curves(curves, picture, levels=levels)
    table = tests[MOVED]
    page = Page(
        "Characters nobody has shown",
        f"A small network, trained on {len(open_table(MOVED).part('train').classes())} characters, "
        f"looks for the images of {len(table.classes())} others: for each of {len(table):,} images "
        "the ones of the same character in other fonts, moved a little at random.",
    )
    header, rows = table_of(found)
    best = {
        (max(range(len(rows)), key=lambda row: float(rows[row][column])), column)
        for column in range(1, len(header))
    }
    page.table(header, rows, best=best, caption="Per cent; higher is better, 100 is perfect.")
    page.figure(picture, "Retrieval of unseen characters after each epoch.", alt="learning curves")
    page.heading("What it finds")
    title, run = next(iter(runs.items()))
    retrieval = found[title][0]
    queries = choose_queries(
        retrieval.per_query["map_at_r"], retrieval.query_labels, 12, index=retrieval.query_index
    )
    shown = retrieval_rows(
        embeddings_of(run.model(), table),
        table.labels,
        table.source.read,
        table.class_names,
        queries,
        k=10,
    )
    page.gallery(shown, f"The ten nearest images, by the network trained with {title}.")
    page.heading("How it got there")
    for title, run in runs.items():
        page.heading(title, level=3)
        page.figure(run.plots / "learning_curves.png", f"{title}: loss, retrieval, rates.")
        page.figure(
            run.plots / "order_parameters.png",
            f"{title}: how far each class has gathered (1 is one point), and how far its class "
            "vector stands from its middle.",
        )
    path = out / "index.html"
    page.write(path)
    return path


def main() -> None:
    """Train, measure, print a table and write a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for all of it")
    parser.add_argument("--epochs", type=int, help="fewer epochs, for a quick look")
    arguments = parser.parse_args()
    try:
        recipe, runs = train_both(arguments.out, arguments.epochs)
    except ValueError as error:  # options without sense: no traceback
        parser.error(str(error))
    tests = {name: open_table(name).part("test") for name in TITLES}
    found = measure(recipe, runs, tests)
    header, rows = table_of(found)
    print("unseen characters, per cent")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print(
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )
    path = write_page(arguments.out, runs, found, tests)
    index = arguments.out / "index"
    run = next(iter(runs.values()))
    build_index(run.folder, tests[STILL], index, device="cpu", replace_old=True, quiet=True)
    print(f"\nlook at {path}")
    print(f"search: weiss serve {index}")


if __name__ == "__main__":
    main()
