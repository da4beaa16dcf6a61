"""A comparison against its units alone: what an executor adds to their time.

The comparison is the traditional protocol of eight rows and twelve seeds, 96 units, each of which
waits a known time and writes a result. Everything else is real: plan, driver, executor, pickled
units, locks, files on disk. The rival is the time of the units alone: their sum over the workers.

    overhead = workers x time by the clock / sum of the units' time - 1

"whole" is from the start of the executor to its end, with two new processes that import
everything; "begun" is from the first result on, what each further unit costs. Ray's cluster has
two cores of this machine and runs before; its workers start with the first units.

    python benchmarks/bench_executors.py --nap 12           # local, and ray if it is installed
    python benchmarks/bench_executors.py --smoke            # short, keeps nothing
"""

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from napping_units import Napping, napping
from record import keep, options_of

from weiss.comparing.driver import drive
from weiss.comparing.executor import Executor, Outcome
from weiss.comparing.folder import join
from weiss.comparing.local import WorkerProcesses
from weiss.comparing.ray_cluster import RayCluster
from weiss.comparing.run_table import traditional
from weiss.runs import recipe_from

WORKERS = 2
LOSSES = ["mf_cwms", "mf_contrastive", "cwms", "contrastive", "ms", "arcface", "proxy_anchor"]


@contextlib.contextmanager
def cluster_here() -> Iterator[None]:
    """Start a Ray cluster of this process, and end it."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    try:
        yield
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


def main() -> None:
    parser = options_of(__doc__, device=False)
    parser.add_argument("--executors", default="local,ray", help="with commas between")
    parser.add_argument("--nap", type=float, default=4.0, help="seconds of a unit")
    arguments = parser.parse_args()
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
