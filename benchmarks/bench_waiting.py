"""Where a user waits: for an import, for the help, for the first answer of a search, for an index.

Each is a process of its own, as a user starts it; the rival is a process that imports torch and
does nothing, and rounds of all alternate. The index has many items of 512 dimensions, as networks
make them (classes of fifty), a name and a class each, thumbnails of one pixel, and a small network
that has not trained. ``open`` imports the catalogue, opens the index and finds ten neighbours;
``search`` is the whole command, with a picture. Counted is the time of the processor, which depends
less on what else the machine does; ``seconds`` by the clock are printed.

    python benchmarks/bench_waiting.py --items 1000000 --kind binary
    python benchmarks/bench_waiting.py --smoke
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_catalogue import embeddings
from record import keep, options_of

from weiss._base.images import encode_png
from weiss.catalogue.building import complete, copy_model
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import Manifest
from weiss.catalogue.networks import network_of_run
from weiss.catalogue.segments import Block, write_segment
from weiss.data import glyphs
from weiss.runs import Run, build_backbone, build_loss, recipe_from, to_toml
from weiss.runs.folder import Kept

OPEN = """
import sys
import numpy as np
from weiss.catalogue import Catalogue
with Catalogue.open(sys.argv[1], device="cpu") as catalogue:
    assert len(catalogue.search(catalogue.vector(7)[None], 10)[0]) == 10
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""
A_CLASS, AT_ONCE = 50, 50_000


def make_run(folder: Path, dimension: int) -> Run:
    """Write a run of the shipped recipe that has not trained."""
    torch.manual_seed(0)
    recipe = recipe_from("glyphs", [f"backbone.embedding_size={dimension}"])
    nested, names = recipe.as_dict(), ["a", "b", "c"]
    run = Run(folder)
    model = build_backbone(nested["backbone"])
    loss = build_loss(nested["loss"], len(names), dimension)
    run.write_recipe(to_toml(nested))
    facts = {"epoch": 0, "metrics": {}, "class_names": names, "seconds": 0.0}
    run.write_model(Kept.now(model, loss, facts))
    return run


def make_index(folder: Path, run: Run, vectors: Any, kind: str) -> None:
    """Write an index of vectors ``(n, D)``, by the steps of `build_index` without the network."""
    index, count = IndexFolder(folder), len(vectors)

    def blocks() -> Any:
        for start in range(0, count, AT_ONCE):
            part = vectors[start : start + AT_ONCE]
            rows = np.arange(len(part))
            places = np.stack([rows, np.ones_like(rows), np.ones_like(rows), np.ones_like(rows)], 1)
            digests = (start + rows).astype("<u8").view("u1").reshape(-1, 8).repeat(2, axis=1)
            yield Block(rows, part, np.zeros(len(part), np.uint8), places, digests, {})

    with index.writing():
        model_folder = index.new_name("model")
        copied = copy_model(run, index.path(model_folder))
        network = network_of_run(index.path(model_folder), "cpu")
        size = vectors.shape[1]
        names = [f"class{row // A_CLASS}/{row}.jpg" for row in range(count)]
        classes = [(f"class{row // A_CLASS}",) for row in range(count)]
        segment = write_segment(index, np.arange(count), size, names, classes, {}, blocks())
        manifest = Manifest(
            name="many",
            next_id=count,
            segments=(segment,),
            model=network.manifest_facts(model_folder),
            data={"name": "many", "split": "all"},
            scores=dict(network.facts["scores"]),
            settings={"kind": kind, "false_match_rate": 0.05},
            store={"address": "faiss"},
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            files={f"{model_folder}/{name}": {} for name in copied},
        )
        complete(index, manifest, (), "cpu")


def timed(words: list[str]) -> tuple[float, float, float]:
    """Run a process; return its seconds of processor time and by the clock, and `OPEN`'s MiB."""
    begun, before = time.perf_counter(), os.times()
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    clock, after = time.perf_counter() - begun, os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return used, clock, int(said) / 1024 if OPEN in words else 0.0


def imported(code: str) -> int:
    """Return how many modules a statement imports."""
    words = [sys.executable, "-c", f"import sys; {code}; print(len(sys.modules))"]
    return int(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout))


def main() -> None:
    """Measure, print, and keep the result."""
    parser = options_of(__doc__, device=False)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--kind", default="binary", help="of the store")
    parser.add_argument("--index", type=Path, help="use or make it here, and leave it there")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    size = 512
    if arguments.smoke:
        arguments.items, arguments.rounds, size = 2_000, 1, 32
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        index = arguments.index or folder / "index"
        if not IndexFolder(index).exists():
            vectors = np.asarray(embeddings(arguments.items, size, A_CLASS))
            make_index(index, make_run(folder / "run", size), vectors, arguments.kind)
            del vectors
        manifest = IndexFolder(index).manifest()
        arguments.items, arguments.kind = manifest.num_items, manifest.settings["kind"]
        (folder / "query.png").write_bytes(encode_png(glyphs().source.read(7)))
        search = ["-m", "weiss", "search", str(index), str(folder / "query.png")]
        commands = {
            "import torch": ["-c", "import torch"],
            "import weiss": ["-c", "import weiss"],
            "weiss --help": ["-m", "weiss", "--help"],
            "import weiss.catalogue": ["-c", "import weiss.catalogue"],
            "open": ["-c", OPEN, str(index)],
            "search": search,
        }
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        for _ in range(arguments.rounds + 1):  # the first reads files into memory
            for name, words in commands.items():
                found[name].append(timed([sys.executable, *words]))
    medians = {
        name: [statistics.median(each) for each in zip(*values[1:], strict=True)]
        for name, values in found.items()
    }
    rival = medians["import torch"][0]
    rows = []
    for name, (processor, clock, memory) in medians.items():
        print(
            f"{name}: {processor:.2f} s of the processor, {clock:.2f} s by the clock, "
            f"{rival / processor:.2f} times the speed of import torch"
        )
        facts = {"what": name, "processor_time_over_import_torch": round(processor / rival, 3)}
        facts |= {"processor_seconds": round(processor, 2)}
        has_index = name in ("open", "search")
        facts |= {"items": arguments.items if has_index else "", "dimensions": size}
        facts |= {"store": arguments.kind if has_index else "", "rounds": arguments.rounds}
        facts |= {"resident_mib": round(memory) if name == "open" else ""}
        rows.append(facts)
    print(f"modules: {imported('import weiss')} for weiss, {imported('import torch')} for torch")
    keep(arguments, "waiting", rows)


if __name__ == "__main__":
    main()
