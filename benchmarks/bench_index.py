"""An index of many glyphs against the network's forward passes alone.

The rival is the network on batches that lie in memory, cropped and ready: it pays for nothing else.
The index is all of `build_index`: decoding, cropping, small pictures, digests, files on disk with
their checksums, store, map and threshold. Same network, same batches, same threads.

There are 11,656 glyphs; those beyond are the same moved by a pixel or two. Rounds of the two
alternate, and the median round counts. Beside the time by the clock stands the time of the
processor, which on one thread does not depend on what else the machine does.

    python benchmarks/bench_index.py
    python benchmarks/bench_index.py --smoke                          # small, keeps nothing
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from record import keep, medians, options_of, wait_for

from weiss.catalogue import build_index
from weiss.data import CentreCrop, Pipeline, Table, glyphs
from weiss.data.sources import Pixels
from weiss.runs import Run, build_backbone, build_loss, recipe_from, to_toml
from weiss.runs.folder import Kept


def many_glyphs(count: int) -> Table:
    """Return this many glyphs, each round of them moved a little further."""
    table = glyphs()
    order = np.arange(count)
    rows, rounds = order % len(table), order // len(table)
    pixels = np.stack(
        [
            np.roll(table.source.pixels[row], (turn, -turn), (0, 1))
            for row, turn in zip(rows, rounds, strict=True)
        ]
    )
    names = [f"{table.source.name(row)} {turn}" for row, turn in zip(rows, rounds, strict=True)]
    return Table(
        "glyphs", Pixels(pixels, names), table.labels[rows], table.class_names, table.splits[rows]
    )


def make_run(folder: Path, table: Table) -> Run:
    """Write a run of the shipped recipe that has not trained: it costs as much as one that has."""
    torch.manual_seed(0)
    recipe, run = recipe_from("glyphs"), Run(folder)
    nested = recipe.as_dict()
    names = list(table.part("train").compact().class_names)
    model = build_backbone(nested["backbone"])
    loss = build_loss(nested["loss"], len(names), recipe.backbone.embedding_size)
    run.write_recipe(to_toml(nested))
    facts = {"epoch": 0, "metrics": {}, "class_names": names, "seconds": 0.0}
    run.write_model(Kept.now(model, loss, facts))
    return run


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=512, help="as the recipe's evaluation has it")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.items, arguments.rounds = 600, 1
    table = many_glyphs(arguments.items)
    processor: dict[str, list[float]] = {"network alone": [], "index": []}
    with tempfile.TemporaryDirectory() as made:
        run = make_run(Path(made) / "run", table)
        model = run.model(arguments.device)
        pipeline = Pipeline(table, device=arguments.device, keep="memory")
        crop = CentreCrop(model.input.size, model.input.resize)
        batches = [batch.images for batch in pipeline.evaluation(crop, batch_size=arguments.batch)]

        def forward() -> None:
            with torch.inference_mode():
                for images in batches:
                    model(images)

        def index() -> None:
            build_index(
                run.folder,
                table,
                Path(made) / f"index-{len(processor['index'])}",
                batch_size=arguments.batch,
                device=arguments.device,
                quiet=True,
            )

        def timed(name: str, act: Callable[[], None]) -> None:
            start = time.process_time()
            act()
            wait_for(arguments.device)
            processor[name].append(time.process_time() - start)

        acts = {"network alone": forward, "index": index}
        contenders = {name: partial(timed, name, act) for name, act in acts.items()}
        seconds = medians(contenders, arguments.rounds, arguments.device)
    worked = {name: statistics.median(values[1:]) for name, values in processor.items()}
    rows = [
        {
            "contender": name,
            "time_over_network": round(value / seconds["network alone"], 4),
            "processor_time_over_network": round(worked[name] / worked["network alone"], 4),
            "seconds": round(value, 4),
            "images": arguments.items,
            "backbone": "small",
            "embedding_size": 128,
            "batch": arguments.batch,
            "rounds": arguments.rounds,
        }
        for name, value in seconds.items()
    ]
    for name, value in seconds.items():
        print(
            f"{name}: {value:.3f} s for {arguments.items:,} images, {worked[name]:.3f} s of "
            "processor time"
        )
    share = seconds["network alone"] / seconds["index"]
    print(f"the whole index: {share:.3f} times the speed of the network alone")
    keep(arguments, "index", rows, arguments.device)


if __name__ == "__main__":
    main()
