"""Commands that compare: bench, study, report. As in `cli`, everything heavy is imported inside."""

import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from weiss.cli import completion, printing
from weiss.cli.options import (
    Cluster,
    MovedData,
    Needs,
    Overrides,
    Quiet,
    Root,
    Trust,
    needs_from,
)

bench_app = typer.Typer(
    help="Compare losses: the paper's two protocols, resumable, on any number of workers.",
    no_args_is_help=True,
)

RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        autocompletion=completion.recipes,
        help="A recipe, a data set, a folder; as for `weiss train`, but the whole network trains "
        "on a CPU, too, unless backbone.train is set.",
    ),
]
Losses = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.several_losses,
        help="Short names with commas between; an unknown one lists them all. "
        "mf_cwms:delta=0.8 is a row with a setting changed, cwms:seeds=2 one with its own number "
        "of runs, in the traditional bench and in studies that train every loss.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The folder. If it holds the same comparison, that is continued."),
]
Workers = Annotated[
    int, typer.Option(help="Processes that share the work; they are spread over the GPUs.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only print how many trainings it is and, once one is finished in --out, how long "
        "the others will take; nothing is started or written.",
    ),
]
COMPARED = "mf_cwms,mf_contrastive,proxy_anchor"
CONTINUE = "Start it again to continue: finished units are not computed again."
TRADITIONAL_HELP = (
    "Compare losses with their usual settings: several seeds, intervals, paired tests.\n\n"
    f"{CONTINUE} You can add --losses or raise --seeds later."
)
REALITY_CHECK_HELP = (
    "Compare losses with the settings that suit each: the protocol of A Metric Learning "
    "Reality Check.\n\n"
    "Four folds of the training classes; Bayesian optimisation of each loss's hyper-parameters on "
    "what is held out; the best settings trained again; networks are scored separately and with "
    "their embeddings concatenated.\n\n"
    "The name of a data set (cub, cars, sop, glyphs) stands for its recipe NAME_mlrc.\n\n"
    f"{CONTINUE} You can add --losses or raise --repeats later."
)
STUDY_HELP = (
    "Vary one setting of a recipe and draw the result; without a name, list the studies.\n\n"
    "NAME is dimension, batch-size, beta-delta, regularisation, fields (how they are found), "
    "classes (cost against their number) or breakdown (where the approximation ends).\n\n"
    + CONTINUE
)


@bench_app.command("traditional", help=TRADITIONAL_HELP)
def traditional(
    recipe: RecipeName = None,
    losses: Losses = COMPARED,
    seeds: Annotated[int, typer.Option(help="Runs of each loss.")] = 10,
    out: Out = None,
    overrides: Overrides = None,
    root: Root = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    needs: Needs = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """The traditional protocol; the text is `TRADITIONAL_HELP`."""
    from weiss.comparing import traditional as plan_of

    plan = plan_of(_recipe(recipe, overrides, root), _names(losses), seeds=seeds)
    where = {"workers": workers, "cluster": cluster, "needs": needs_from(needs)}
    _carry_out(plan, out, quiet, dry_run, **where)


@bench_app.command("reality-check", help=REALITY_CHECK_HELP)
def reality_check(
    recipe: RecipeName = None,
    losses: Losses = COMPARED,
    trials: Annotated[int, typer.Option(help="Settings tried for each loss.")] = 50,
    repeats: Annotated[int, typer.Option(help="How often the best are trained again.")] = 10,
    folds: Annotated[int, typer.Option(help="Parts of the training classes.")] = 4,
    sampler: Annotated[str, typer.Option(help="gp (Gaussian process) or tpe.")] = "gp",
    trials_at_once: Annotated[
        int, typer.Option(help="Trials of a loss that may be under way together.")
    ] = 1,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Stop a trial early if its score is below the median."),
    ] = False,
    spaces: Annotated[
        Path | None, typer.Option(help="A TOML file of search spaces, to use your own.")
    ] = None,
    out: Out = None,
    overrides: Overrides = None,
    root: Root = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    needs: Needs = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """The reality check; the text is `REALITY_CHECK_HELP`."""
    from weiss.comparing import reality_check as plan_of
    from weiss.runs import MAIN_RECIPES, REALITY_CHECK_RECIPES

    recipe = recipe or "glyphs"
    if recipe in MAIN_RECIPES and recipe not in REALITY_CHECK_RECIPES:
        warnings.warn(
            f"there is no recipe of the reality check for {recipe}: network, optimiser and batch "
            f"are those of the recipe {MAIN_RECIPES[recipe]!r}.",
            stacklevel=2,
        )
    plan = plan_of(
        _recipe(REALITY_CHECK_RECIPES.get(recipe, recipe), overrides, root),
        _names(losses),
        trials=trials,
        repeats=repeats,
        folds=folds,
        sampler=sampler,
        at_once=trials_at_once,
        prune=prune,
        spaces=spaces,
    )
    where = {"workers": workers, "cluster": cluster, "needs": needs_from(needs)}
    _carry_out(plan, out, quiet, dry_run, **where)


def study(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which study.")] = None,
    recipe: RecipeName = None,
    losses: Losses = None,
    seeds: Annotated[int, typer.Option(help="Runs of each row, where the study trains.")] = 1,
    values: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="Other values for an axis of the study. Repeat."),
    ] = None,
    out: Out = None,
    overrides: Overrides = None,
    root: Root = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    needs: Needs = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Vary one setting; the text is `STUDY_HELP`."""
    from weiss.comparing import STUDIES, make_study

    if name is None:
        for kind, each in STUDIES.items():
            print(f"{kind:16s} {each.question}")
        print("\nRun one: weiss study NAME [RECIPE] --out DIR")
        return
    plan = make_study(
        name,
        _recipe(recipe, overrides, root),
        losses=None if losses is None else _names(losses),
        seeds=seeds,
        values=dict(_values(text) for text in values or ()),
    )
    where = {"workers": workers, "cluster": cluster, "needs": needs_from(needs)}
    _carry_out(plan, out, quiet, dry_run, **where)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Folders of runs, seeds, benches, studies."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Show the worst classes in images.")
    ] = True,
    overrides: MovedData = None,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "",
    trust: Trust = False,
) -> None:
    """Write a page, and tables in Markdown and LaTeX, from what lies in folders."""
    from weiss.comparing import PLAN, current_summary
    from weiss.reporting import Looked, write_report

    # An unfinished comparison is reported with its results so far.
    summaries = {run: current_summary(run) for run in runs if (run / PLAN).is_file()}

    def look(run: Path) -> Looked:
        from weiss.runs import embed_runs

        found = embed_runs([run], overrides=overrides or (), trust=trust)[0]
        retrieval = found.retrieval()
        return Looked(
            embeddings=found.embeddings,
            labels=found.table.labels,
            class_names=found.table.class_names,
            read=found.table.source.read,
            per_query=dict(retrieval.per_query),
            query_index=found.queries[retrieval.query_index],
            candidates=found.gallery,
        )

    written = write_report(
        runs, out, look=look if images else None, title=title, summaries=summaries
    )
    figures = [path for path in written if path.parent != out.parent]
    for path in written:
        if path not in figures:
            print(f"Wrote {path}")
    if figures:
        print(f"Wrote {len(figures)} figures to {figures[0].parent}")


def _recipe(recipe: str | None, overrides: list[str] | None, root: str | None) -> Any:
    from weiss.runs import recipe_from

    return recipe_from(recipe, overrides or (), root=root)


def _names(losses: str | None) -> list[str]:
    # A comma within brackets belongs to a value: mf_cwms:augment.area=[0.2,1.0]
    words = re.split(r",(?![^\[]*\])", losses or "")
    return [word.strip() for word in words if word.strip()]


def _values(text: str) -> tuple[str, list[Any]]:
    key, equals, listed = text.partition("=")
    if not equals or not listed.strip():
        raise ValueError(
            f"--values must read KEY=A,B,C; got {text!r}. Write --values loss.beta=50,80, say."
        )
    from weiss.runs import override_from

    words = [word.strip() for word in listed.split(",") if word.strip()]
    return key.strip(), [override_from(f"a.value={word}")[1] for word in words]


def _draw(found: dict[str, Any], out: Path) -> None:
    """Draw the picture of a comparison, to look at and for a paper."""
    from weiss.reporting.pictures import draw_picture

    try:
        for suffix in ("png", "svg", "pdf"):
            draw_picture(found, out / f"picture.{suffix}")
    except ImportError:
        warnings.warn(
            "matplotlib is not installed: there is no picture. Where it is, `weiss report` draws "
            f"it from {out}.",
            stacklevel=2,
        )


def _carry_out(plan: Any, out: Path | None, quiet: bool, dry_run: bool, **options: Any) -> None:
    from weiss.comparing import carry_out, forecast
    from weiss.runs.provenance import recorded_command

    if out is None:
        data = Path(plan.recipe.data.name).stem or "photos"
        out = Path("runs") / f"{plan.kind}-{data}-{plan.recipe.backbone.name}".replace(":", "-")
    if dry_run:
        print(f"{out}: {forecast(plan, out, **options).in_words()}")
        return
    command = recorded_command(sys.argv[1:])
    found = carry_out(plan, out, command=command, quiet=quiet, **options)
    _draw(found, out)
    if not quiet:
        printing.print_comparison(found, out)
    failed = {key: why for row in found["rows"] for key, why in row["failed"].items()}
    if not failed and not found["is_complete"]:
        raise RuntimeError(
            f"every unit must give a result; {found['num_done']} of {found['num_units']} have. "
            "Start the same command again."
        )
    if failed:
        # One line for each cause: a setting that all share fails everywhere.
        causes = {why: [key for key in failed if failed[key] == why] for why in failed.values()}
        listed = "\n  ".join(f"{', '.join(keys)}: {why}" for why, keys in causes.items())
        raise RuntimeError(
            f"every unit must give a result; {len(failed)} failed:\n  {listed}\nFix the cause "
            "and start the same command again: finished units are kept."
        )
