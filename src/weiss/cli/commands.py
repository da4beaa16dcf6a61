"""The command line: each command reads its arguments, calls one function and prints.

Everything heavy is imported inside the commands, so that ``weiss --help`` answers at once.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weiss.cli import catalogue, comparing, completion, data_commands, magnet, printing
from weiss.cli.classify import classify
from weiss.cli.embed import EMBED_HELP, embed
from weiss.cli.options import (
    AllowMissing,
    Device,
    Dimension,
    Json,
    MovedData,
    Nested,
    NetworkName,
    NetworkPooling,
    NetworkWeights,
    Overrides,
    Quiet,
    Root,
    SharedClasses,
    SkipBad,
    Trust,
)

PANELS = {
    "Train and measure": ("train", "evaluate", "recipes"),
    "Search photos": ("embed", "index", "search", "classify", "serve", "export"),
    "Compare losses": ("bench", "study", "report"),
    "Data sets": ("data",),
    "Physics": ("magnet",),
}
"""The commands as the help shows them, in this order."""


class Grouped(TyperGroup):
    """The commands in the order and the groups of `PANELS`; typer would put nested ones last."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in PANELS.items():
            for name in names:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        shown = [name for names in PANELS.values() for name in names]
        return [*shown, *(name for name in self.commands if name not in shown)]

    def invoke(self, ctx: Any) -> Any:
        """Run a command; of a value of the wrong type say what it was."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            printing.say_what_was_given(error)
            raise


app = typer.Typer(
    name="weiss",
    cls=Grouped,
    help="Mean field theory for deep metric learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.data_app, name="data")
app.add_typer(comparing.bench_app, name="bench")
app.command("study", help=comparing.STUDY_HELP)(comparing.study)
app.command("report")(comparing.report)
app.command("magnet", help=magnet.MAGNET_HELP)(magnet.magnet)
app.command("embed", help=EMBED_HELP)(embed)
app.command("index", help=catalogue.INDEX_HELP)(catalogue.index)
app.command("search")(catalogue.search)
app.command("classify")(classify)
app.command("serve")(catalogue.serve)
app.command("export")(catalogue.export)

RECIPE_HELP = "\n\n".join(  # paragraphs of `weiss train --help`
    (
        "Train an embedding and leave a run folder: recipe, metrics, best model, plots, and the "
        "state to resume from.",
        "RECIPE may be: nothing, for glyphs on this machine's CPU or GPU; the name of a recipe "
        "(`weiss recipes` lists them) or a .toml file; the name of a data set (cub, cars, sop, "
        "inshop), for the paper's settings; a folder with one subfolder a class, or a list of "
        "files, for your own photos; a run folder, for the same again.",
        "Examples:",
        "weiss train",
        "weiss train cub --root data",
        "weiss train photos/ --epochs 10",
        "weiss train photos/ --unfreeze 1",
        "weiss train cub_resnet50 --root data --loss proxy_anchor --set loss.alpha=16 --seeds 5",
        "weiss train --resume --out runs/cub",
        "torchrun --nproc-per-node 4 -m weiss train cub --root data   (processes share each batch)",
    )
)


def version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        from weiss import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def weiss(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Mean field theory for deep metric learning."""


@app.command(help=RECIPE_HELP)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=completion.recipes,
            help="A recipe, a data set, or a folder; see above.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(autocompletion=completion.losses, help="The setting loss.name: mf_cwms, ..."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.backbones,
            help="The setting backbone.name: resnet50, timm:NAME, ...",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="The setting backbone.weights: a file, an address, imagenet, scratch."),
    ] = None,
    embedding_size: Annotated[
        int | None, typer.Option(help="The setting backbone.embedding_size.")
    ] = None,
    dimensions: Annotated[
        str | None,
        typer.Option(
            metavar="128,32,8",
            help="The setting backbone.dimensions: Matryoshka training, for embeddings that can be "
            "cut to these sizes.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The setting train.epochs.")] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The setting train.batch_size, or auto.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The setting optim.lr, the learning rate of the network.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. By default runs/DATA-BACKBONE-LOSS-SEED.")
    ] = None,
    root: Root = None,
    split: Annotated[
        str | None, typer.Option(help="For your own data: classes, stratified, given or all.")
    ] = None,
    min_images: Annotated[
        int | None, typer.Option(help="The fewest images a class may have.")
    ] = None,
    skip_bad: SkipBad = False,
    allow_missing: AllowMissing = False,
    shared_classes: SharedClasses = False,
    nested: Nested = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out where it stopped.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="How many seeds to run; more than one are summarised.")
    ] = 1,
    workers: Annotated[int, typer.Option(help="How many seeds to run at the same time.")] = 1,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen",
            help="Train head and fields only, on features that the pretrained network computes "
            "once. The default for your own photos on a CPU.",
        ),
    ] = False,
    unfreeze: Annotated[
        int | None,
        typer.Option(metavar="N", help="As --frozen; then the last N stages train, too."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Train the whole network, also on a CPU.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train; the text is `RECIPE_HELP`."""
    from weiss._base.memory import keep_freed_memory
    from weiss._base.processes import is_main_process, leave_process_group
    from weiss.runs import overrides_from, recipe_from, shipped_recipes
    from weiss.runs.frozen import frozen_settings, is_frozen_by_default
    from weiss.runs.overrides import SHORT, with_options
    from weiss.training import train as train_one
    from weiss.training import train_seeds

    keep_freed_memory()

    for name, given in (("--seeds", seeds), ("--workers", workers)):
        if given < 1:
            raise ValueError(f"{name} must be at least 1; got {given}.")
    if workers > 1 and seeds == 1:
        raise ValueError(
            f"--workers is for several seeds at the same time; got {workers} with one seed. Add "
            "--seeds. To let processes share a run, start it with torchrun."
        )
    short = {
        "loss": loss,
        "backbone": backbone,
        "weights": weights,
        "embedding_size": embedding_size,
        "epochs": epochs,
        "batch_size": int(batch_size) if batch_size and batch_size.isdecimal() else batch_size,
        "lr": lr,
    }
    sizes = _sizes(dimensions)
    if sizes and embedding_size is None and not any("embedding_size" in o for o in overrides or ()):
        short["embedding_size"] = sizes[0]  # the whole embedding comes first
    options = {
        **{key: short[name] for name, key in SHORT.items()},
        "backbone.dimensions": sizes,
        "data.split": split,
        "data.min_images": min_images,
        "data.skip_bad": skip_bad or None,
        "data.allow_missing": allow_missing or None,
        "data.shared_classes": shared_classes or None,
        "data.nested": nested or None,
    }
    changes = with_options(options, overrides_from(overrides or ()), "--set")
    _refuse_two_parts(frozen, unfreeze, full, resume and recipe is None, changes)
    if resume and recipe is None:
        recipe = _run_to_resume(out, seeds)
        if recipe != str(out):  # one of several seeds
            changes = {"seed": int(Path(recipe).name.removeprefix("seed-")), **changes}
    if full:
        # Of a recipe that trains on features, which has them.
        changes = {"augment.views": 0, **changes}
        changes |= {"backbone.train": "all", "train.warmup_on": "images"}
    frozen = frozen or unfreeze is not None
    nobody_chose = not frozen and not full and is_frozen_by_default(recipe, changes)
    if nobody_chose and resume and out is not None and (begun := _begun(out)):
        # A run that trains the whole network, with --full or from before, continues so.
        nobody_chose = recipe_from(begun[0]).backbone.train == "frozen"
    if frozen or nobody_chose:
        changes = frozen_settings(recipe, changes, unfreeze or 0)
    asked = recipe_from(recipe, changes, root=root)
    is_told = not quiet and os.environ.get("RANK", "0") == "0"  # there is no group of them yet
    if nobody_chose and is_told:
        printing.print_note(
            "without a GPU only head and fields train, on features of the frozen network. To train "
            "all of it: --full. Its last stage, too: --unfreeze 1."
        )
    if is_told and not resume and recipe in shipped_recipes() and Path(recipe).is_dir():
        printing.print_note(
            f"{recipe} is read as the recipe of this name, and trains what that says. To read it "
            f"as a folder of your own photos: weiss train {recipe}/"
        )
    if out is None:
        name = Path(asked.data.name).stem or "photos"
        out = Path("runs") / f"{name}-{asked.backbone.name}-{asked.loss.name}".replace(":", "-")
        out = out.with_name(f"{out.name}-{asked.seed}" if seeds == 1 else out.name)
    if is_told and not resume:
        data_commands.print_remarks(asked.data.name, asked.data.nested)
        if asked.train.warmup_epochs >= asked.train.epochs:
            printing.print_note(
                f"all {asked.train.epochs} epochs are warm-up (train.warmup_epochs), in which only "
                "the head and the class vectors train. Add epochs to train the network."
            )
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        if seeds == 1:
            found = train_one(asked, out, resume=resume, quiet=quiet)
        else:
            found = train_seeds(asked, out, seeds, workers=workers, resume=resume, quiet=quiet)
            if found and not quiet:
                printing.print_seeds(found, out)
    if as_json and is_main_process():
        printing.print_json({"folder": str(out), **found})
    leave_process_group()


@app.command("recipes")
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe in full.")] = None,
) -> None:
    """Show the recipes that come with Weiss."""
    from weiss.runs import recipe_file, recipe_from, shipped_recipes

    if name is not None:
        recipe_from(name)  # which refuses what cannot be used
        print(recipe_file(name).read_text(encoding="utf-8"), end="")
        return
    for shipped_name, path in shipped_recipes().items():
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        print(f"{shipped_name:20s} {title}")
    print("\nOne in full: weiss recipes NAME. Run it: weiss train NAME --root DIR")


@app.command()
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run folder; or data, a name, a folder or a list, for a pretrained network.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="Other data: a name, a folder or a list. By default the run's own."),
    ] = None,
    backbone: NetworkName = None,
    weights: NetworkWeights = None,
    pooling: NetworkPooling = None,
    root: Root = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="test, valid or train. Default: valid if classes were held out, or test."
        ),
    ] = None,
    dimension: Dimension = None,
    device: Device = "auto",
    clustering: Annotated[
        bool, typer.Option("--clustering", help="Also cluster, for NMI and AMI.")
    ] = False,
    overrides: MovedData = None,
    allow_missing: AllowMissing = False,
    skip_bad: SkipBad = False,
    nested: Nested = False,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Compute every metric of a saved run, on its own data or others; or of a pretrained network.

    Without a run: weiss evaluate photos/ --backbone resnet50_v1 --weights FILE
    """
    import tempfile
    from contextlib import ExitStack

    from weiss._base.memory import keep_freed_memory
    from weiss.data import DATASETS
    from weiss.data.object_storage import is_address
    from weiss.runs import Run, overrides_from, pretrained_run, recipe_from_dict
    from weiss.runs.card import not_trained
    from weiss.runs.dimension import at_dimension
    from weiss.training import evaluate_run

    keep_freed_memory()

    changes = overrides_from(overrides or ())
    changes |= {"data.allow_missing": True} if allow_missing else {}
    changes |= {"data.skip_bad": True} if skip_bad else {}
    changes |= {"data.nested": True} if nested else {}
    network = {"--backbone": backbone, "--weights": weights, "--pooling": pooling}
    named = [option for option, given in network.items() if given is not None]
    by, opened = "", Run(run, trust=trust)
    is_run = opened.exists()
    if is_run and named:
        raise ValueError(
            f"{named[0]} must be left out for a run, which has its network; got {run}."
        )
    with ExitStack() as stack:
        if not is_run and (named or run in DATASETS or is_address(run) or Path(run).exists()):
            if data is not None:
                raise ValueError(
                    f"the data of a pretrained network must be given once; got {run} and --data "
                    f"{data}. Leave --data out; or {run} should be a run, and it holds none."
                )
            data = run
            catalogue.refuse_absent_data("DATA", data, root)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weiss-"))
            opened = pretrained_run(Path(folder) / "run", backbone, weights, pooling)
            by = f" by {not_trained(recipe_from_dict(opened.recipe()))}"
        if data is not None:
            own = opened.recipe().get("data", {}).get("nested", False)
            data_commands.print_remarks(data, nested or own)
        found = evaluate_run(
            stack.enter_context(at_dimension(opened, dimension)),
            data=data,
            root=root,
            split=split,
            device=device,
            clustering=clustering,
            overrides=changes,
        )
    if as_json:
        printing.print_json(found.summary())
        return
    print(f"{found.summary()['queries']:,} queries of {data or 'the data of the run'}{by}")
    printing.print_metrics(found)
    if len(found.per_class()) == 1:
        printing.print_note(
            "the queries are of one class. Where the items searched are too, every network scores "
            "100 %: add classes to measure this one."
        )


def main() -> None:
    """Run the command line; a mistake becomes one message, not a traceback."""
    warnings.showwarning = printing.show_warning
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        # Ctrl-C is not an error: it has an exit code of its own.
        code = getattr(error, "exit_code", 2)
        if code != 2 and os.environ.get("RANK", "0") != "0":
            sys.exit(code)  # one of several processes has said it
        word = "[bold red]Error:[/]" if code == 2 else "[yellow]Stopped:[/]"
        printing.err().print(f"{word} {printing.plain(str(error))}", soft_wrap=True)
        sys.exit(code)


def _refuse_two_parts(
    frozen: bool, unfreeze: int | None, full: bool, resumes: bool, changes: Mapping[str, object]
) -> None:
    """Refuse options that contradict each other about the part of the network that trains."""
    given = {"--frozen": frozen, "--unfreeze": unfreeze is not None, "--full": full}
    names = [name for name, is_given in given.items() if is_given]
    if unfreeze is not None and unfreeze < 1:
        raise ValueError(f"--unfreeze must be at least 1, the last stage; got {unfreeze}.")
    if full and len(names) > 1:
        raise ValueError(f"--full must not be given with {names[0]}, its opposite. Choose one.")
    if names and "backbone.train" in changes:
        raise ValueError(
            f"backbone.train must not be set with {names[0]}, which sets it. Leave either out."
        )
    if names and resumes:
        raise ValueError(
            f"{names[0]} must be left out to resume a run, which keeps its own recipe."
        )


def _sizes(given: str | None) -> list[int] | None:
    """Return the sizes of --dimensions."""
    if given is None:
        return None
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(
            f"--dimensions must be whole numbers with commas between them, such as 128,32,8; got "
            f"{given!r}."
        )
    return [int(word) for word in words]


def _begun(out: Path) -> list[str]:
    """Return the run folders of OUT that have begun: itself, or those of its seeds."""
    from weiss.runs.folder import RECIPE, Run

    if Run(out).exists():
        return [str(out)]
    found = sorted(out.glob(f"seed-*/{RECIPE}"), key=lambda path: (len(str(path)), path))
    return [str(path.parent) for path in found]


def _run_to_resume(out: Path | None, seeds: int) -> str:
    """Return the run folder to resume: OUT, or the first of its seeds."""
    if out is None:
        raise ValueError("--resume must know which run to resume. Add --out and its folder.")
    begun = _begun(out)
    if begun == [str(out)]:
        return str(out)
    if begun and seeds == 1:
        raise ValueError(
            f"--seeds must be given again for {out}, which holds {len(begun)} seeds that have "
            f"begun. Add --seeds {max(len(begun), 2)}, or however many there are to be."
        )
    if begun:
        return begun[0]
    raise ValueError(
        f"--resume must find a run in --out; {out} holds none. Check the path, or "
        "leave --resume out to begin."
    )
