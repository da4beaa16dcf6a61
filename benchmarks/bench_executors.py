"""A comparison against its units alone: what an executor adds to their time.

The comparison is the traditional protocol of eight rows and twelve seeds, 96 units, each of which
waits a known time and writes a result. Everything else is real: plan, driver, executor, pickled
units, locks, files on disk. The rival is the time of the units alone: their sum over the workers.

    overhead = workers x time by the clock / sum of the units' time - 1

"whole" is from the start of the executor to its end, with two new processes that import
everything; "begun" is from the first result on, what each further unit costs. Ray's cluster has
two cores of this machine and runs before; its workers start with the first units.

With ``--embed`` it is `weiss embed` of so many photos (JPEG, 320 x 240; ResNet-50, 112 pixels), as
commands: one with ``--cluster auto``, against as many plain ones that share a folder as the cluster
has cores, each with one thread. The two alternate, and the median of their ratios counts. "whole"
has the start: of each plain command, or of the command on the cluster and then of its actors.
"begun" is from the first file on.

    python benchmarks/bench_executors.py --nap 12           # local, and ray if it is installed
    python benchmarks/bench_executors.py --embed 512 --rounds 5
    python benchmarks/bench_executors.py --smoke            # short, keeps nothing
"""

import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from napping_units import Napping, napping
from PIL import Image
from record import keep, options_of

from weiss.comparing.driver import drive
from weiss.comparing.executor import Executor, Outcome
from weiss.comparing.folder import join
from weiss.comparing.local import WorkerProcesses
from weiss.comparing.ray_cluster import RayCluster
from weiss.comparing.run_table import traditional
from weiss.runs import Kept, Run, build_backbone, build_loss, recipe_from, to_toml

WORKERS = 2
SHARD = 32
"""Images of a file, with ``--embed``."""
LOSSES = ["mf_cwms", "mf_contrastive", "cwms", "contrastive", "ms", "arcface", "proxy_anchor"]


@contextlib.contextmanager
def cluster_here() -> Iterator[str]:
    """Start a Ray cluster of this process, give its address, and end it."""
    import ray

    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def executor_of(name: str, plan: Napping, out: Path) -> Executor:
    if name == "ray":
        return RayCluster("auto", plan.recipe, out, needs={}, say=print)
    return WorkerProcesses(WORKERS, out, device="cpu", say=print)


def measure(name: str, plan: Napping) -> dict[str, float]:
    """Return the overhead of an executor, of the whole comparison and once it has begun."""
    found: list[tuple[float, Outcome]] = []

    class Watched:
        """Notes when each outcome arrives."""

        def __init__(self, executor: Executor) -> None:
            self._executor = executor

        def __getattr__(self, name: str) -> object:
            return getattr(self._executor, name)

        def wait(self, seconds: float) -> list[Outcome]:
            outcomes = self._executor.wait(seconds)
            found.extend((time.monotonic(), outcome) for outcome in outcomes)
            return outcomes

    with contextlib.ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bench"
        if name == "ray":
            stack.enter_context(cluster_here())
        start = time.monotonic()
        with executor_of(name, plan, out) as executor:
            join(plan, out)
            drive(plan, out, Watched(executor), say=lambda line: None)  # type: ignore[arg-type]
        whole = time.monotonic() - start
    assert len(found) == plan.num_units, f"{len(found)} of {plan.num_units} units were done"
    seconds = plan.options["nap"]
    first, last = found[0][0], found[-1][0]
    return {
        "whole": WORKERS * whole / (plan.num_units * seconds) - 1,
        # Until the first result every worker has done nearly one unit.
        "begun": WORKERS * (last - first) / ((plan.num_units - WORKERS) * seconds) - 1,
    }


def write_photos(folder: Path, count: int) -> None:
    """Write photos of blurred noise, which take as long to decode as others of their size."""
    rng = np.random.default_rng(0)
    for number in range(count):
        noise = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        path = folder / f"class{number % 8}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(path, quality=90)


def make_network(folder: Path) -> Path:
    """Write the run of a network that has not trained: it costs as much as one that has."""
    settings = ["backbone.name=resnet50", "backbone.weights=scratch", "backbone.head=linear"]
    settings += ["evaluate.size=112", "evaluate.resize=128", "evaluate.batch_size=32"]
    recipe, run = recipe_from("photos", settings), Run(folder)
    model = build_backbone(recipe.as_dict()["backbone"])
    loss = build_loss(recipe.as_dict()["loss"], 8, recipe.backbone.embedding_size)
    run.write_recipe(to_toml(recipe.as_dict()))
    names = [f"class{number}" for number in range(8)]
    run.write_model(Kept.now(model, loss, {"epoch": 0, "metrics": {}, "class_names": names}))
    return folder


def embedding_speeds(run: Path, photos: Path, out: Path, count: int, cluster: str) -> list[float]:
    """Return images a second of `weiss embed`: of all of it, and from the first file on."""
    words = [sys.executable, "-m", "weiss", "embed", str(run), str(photos), "--out", str(out)]
    words += ["--shard-items", str(SHARD), "--device", "cpu", "--quiet"]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        own | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for rank in ("0", "1")
    ]
    start = time.time()
    if cluster:
        own |= {"RAY_ADDRESS": cluster}
        commands = [subprocess.Popen([*words, "--cluster", "auto"], env=own)]
    else:
        commands = [subprocess.Popen(words, env=rank) for rank in ranks]
    assert {command.wait() for command in commands} == {0}
    whole = time.time() - start
    times = sorted(path.stat().st_mtime for path in (out / "vectors").glob("*.parquet"))
    # Until the first file every worker has done nearly one.
    begun = SHARD * (len(times) - WORKERS) / (times[-1] - times[0])
    return [count / whole, begun]


def compare_embedding(count: int, rounds: int) -> list[dict[str, float]]:
    """Return for each round by how much the speed on Ray is that of plain commands."""
    ratios = []
    with tempfile.TemporaryDirectory() as made, cluster_here() as address:
        folder = Path(made)
        write_photos(folder / "photos", count)
        run = make_network(folder / "run")
        for turn in range(rounds + 1):  # the first one warms up
            plain, ray = (
                embedding_speeds(run, folder / "photos", folder / f"{name}-{turn}", count, cluster)
                for name, cluster in (("plain", ""), ("ray", address))
            )
            found = [one / other for one, other in zip(ray, plain, strict=True)]
            if turn:
                ratios.append(dict(zip(("whole", "begun"), found, strict=True)))
                print({name: round(value, 3) for name, value in ratios[-1].items()}, flush=True)
    return ratios


def main() -> None:
    parser = options_of(__doc__, device=False)
    parser.add_argument("--embed", type=int, metavar="IMAGES", help="measure `weiss embed` instead")
    parser.add_argument("--rounds", type=int, default=5, help="with --embed")
    parser.add_argument("--executors", default="local,ray", help="with commas between")
    parser.add_argument("--nap", type=float, default=4.0, help="seconds of a unit")
    arguments = parser.parse_args()
    if arguments.embed:
        shared = {"contender": "weiss embed on Ray", "rival": "two plain commands"}
        shared |= {"backbone": "resnet50, 112 pixels", "ray": version("ray")}
        ratios = compare_embedding(arguments.embed, arguments.rounds)
        rows = [
            {"round": turn, **{f"speed_over_plain_{key}": round(each[key], 4) for key in each}}
            | {"images": arguments.embed, **shared}
            for turn, each in enumerate(ratios, 1)
        ]
        keep(arguments, "embed", rows)
        whole, begun = (statistics.median(each[key] for each in ratios) for key in ratios[0])
        print(
            f"weiss embed on Ray: {whole:.3f} times the speed of plain commands with the start, "
            f"{begun:.3f} times from the first file on"
        )
        return
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    seeds, seconds = (1, 0.05) if arguments.smoke else (12, arguments.nap)
    plan = napping(
        traditional(recipe_from("glyphs", ["train.device=cpu"]), LOSSES, seeds=seeds), seconds
    )
    rows = []
    for name in arguments.executors.split(","):
        if name == "ray" and (arguments.smoke or importlib.util.find_spec("ray") is None):
            continue  # no part of the tests, or not installed
        overhead = measure(name, plan)
        row = {"executor": name, "units": plan.num_units, "workers": WORKERS, "nap": seconds}
        row["ray"] = version("ray") if name == "ray" else ""
        rows.append(row | {f"overhead_{k}": round(value, 4) for k, value in overhead.items()})
        print(
            f"{name}: {plan.num_units} units of {seconds:g} s on {WORKERS} workers; beyond the "
            f"units {100 * overhead['whole']:.2f} % of their time in all, once begun "
            f"{100 * overhead['begun']:.2f} % of it"
        )
    keep(arguments, f"executors-{seconds:g}", rows)


if __name__ == "__main__":
    main()
