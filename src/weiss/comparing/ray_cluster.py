"""The executor for a cluster: every unit is a task of Ray.

Ray places tasks on machines with free GPUs, cores and memory, and begins a task again when its
worker or its machine dies. All machines see the folder of the comparison under one path: a task
holds the lock of its unit there, writes the result, and then returns it. So a task that Ray begins
elsewhere while the first one still runs, after a broken connection, waits for it.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from weiss._base.clusters import check_address, check_needs, connect, slots
from weiss.comparing.executor import TRIES, Executor, Outcome, attempt, failure
from weiss.comparing.folder import PLAN, read_plan
from weiss.comparing.units import Unit
from weiss.data import reuse_decoded_images
from weiss.data.cache import estimated_bytes
from weiss.runs import Recipe
from weiss.runs.experiment import open_data

LEAST_POOL = 16
"""Tasks that wait or run even if the cluster has no room now: an autoscaler must see them."""
COUNT_SECONDS, STOP_SECONDS = 5.0, 60.0
"""Between two looks at the size of the cluster; for tasks to save their state."""
LIGHT = {"num_cpus": 0, "num_gpus": 0}
"""What a light unit needs: it waits for no place."""


def resources(recipe: Recipe, needs: Mapping[str, float], *, has_gpus: bool) -> dict[str, float]:
    """Return what a unit of a recipe needs, as options of a task of Ray.

    GPUs: none for ``train.device = "cpu"``, one for ``"cuda"``, and one for ``"auto"`` if the
    cluster has any. Cores: ``data.num_workers``, or one. Memory: of the decoded images, if
    ``data.keep = "memory"``.

    Args:
        recipe: what is trained.
        needs: numbers that replace these: ``gpus`` (0.5 lets two units share one), ``cpus``,
            ``memory`` in GB.
        has_gpus: whether the cluster has a GPU.
    """
    check_needs(needs, "a unit")
    device = recipe.train.device
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"train.device must be auto, cpu or cuda with --cluster, where Ray chooses the GPU; "
            f"got {device!r}."
        )
    gpus = needs.get("gpus", float(device == "cuda" or (device == "auto" and has_gpus)))
    found = {"num_gpus": gpus, "num_cpus": needs.get("cpus", recipe.data.num_workers or 1)}
    memory = needs.get("memory", 0.0) * 1e9
    if "memory" not in needs and recipe.data.keep == "memory":
        memory = estimated_bytes(open_data(recipe), recipe.evaluate.resize or 256)
    return found | ({"memory": int(memory)} if memory else {})


def check_cluster(address: str, recipe: Recipe, needs: Mapping[str, float]) -> None:
    """Refuse an address or needs that cannot be used, before anything is connected."""
    check_address(address)
    resources(recipe, needs, has_gpus=False)


class RayCluster(Executor):
    """Units as tasks of a Ray cluster.

    Args:
        address: ``"auto"`` for the cluster that this machine belongs to (or ``RAY_ADDRESS`` names),
            or ``"ray://HOST:PORT"`` for another.
        recipe: of the comparison.
        out: its folder, on all machines.
        needs: see `resources`.
        say: called with a line if the cluster has no room for a unit.
    """

    def __init__(
        self,
        address: str,
        recipe: Recipe,
        out: Path,
        *,
        needs: Mapping[str, float],
        say: Callable[[str], None],
    ) -> None:
        check_cluster(address, recipe, needs)
        self._out = out.absolute()
        self._ray, self._is_ours = connect(address)
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        self._needs = resources(recipe, needs, has_gpus=has_gpus)
        self._do = self._ray.remote(_do)
        self._tasks: dict[Any, str] = {}  # the key of each unit, by its task
        self._identity: str | None = None
        self._slots, self._counted = 0, -COUNT_SECONDS
        if not self._num_slots():
            wanted = ", ".join(f"{name} {value:g}" for name, value in self._needs.items())
            say(f"waiting: no machine of the cluster has room for a unit, which needs {wanted}")

    def __exit__(self, *_: object) -> None:
        """Cancel all tasks, wait until trainings have saved their state, and disconnect."""
        for task in self._tasks:
            self._ray.cancel(task)
        if self._tasks:
            self._ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=STOP_SECONDS)
        if self._is_ours:
            self._ray.shutdown()

    @property
    def room(self) -> int:
        """Twice what the cluster does at a time, less what it has: no machine waits for us."""
        return max(2 * self._num_slots(), LEAST_POOL) - len(self._tasks)

    def start(self, unit: Unit) -> None:
        """Submit a task."""
        if self._identity is None:
            self._identity = (read_plan(self._out) or {})["id"]
        needs = LIGHT if unit.is_light else self._needs
        task = self._do.options(
            name=unit.key, max_retries=TRIES - 1, retry_exceptions=True, **needs
        ).remote(unit, str(self._out), self._identity, os.getcwd())
        self._tasks[task] = unit.key

    def wait(self, seconds: float) -> list[Outcome]:
        """Collect what tasks return; one that Ray gave up has failed."""
        if not self._tasks:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait([*self._tasks], num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)
        return [self._outcome(task, self._tasks.pop(task)) for task in ready]

    def _outcome(self, task: Any, key: str) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(task)
            return outcome
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            said = next(iter(str(cause).strip().splitlines()), "")
            why = f"begun {TRIES} times on the cluster: {type(cause).__name__}: {said}"
            return failure(key, self._out, why)

    def _num_slots(self) -> int:
        """Return how many units the cluster could do at a time if it did nothing else."""
        if time.monotonic() > self._counted + COUNT_SECONDS:
            total, self._counted = self._ray.cluster_resources(), time.monotonic()
            self._slots = slots(total, self._needs)
        return self._slots


def _do(unit: Unit, out: str, identity: str, started_in: str) -> Outcome:
    """Do a unit on a machine of the cluster; what it raises makes Ray begin it again."""
    if not (Path(out) / PLAN).is_file() or (read_plan(Path(out)) or {})["id"] != identity:
        raise RuntimeError(
            f"--out must be one folder for all machines of the cluster; {socket.gethostname()} "
            f"does not see the comparison in {out}. Use a shared disk."
        )
    here = Path(started_in)  # from which relative paths of a recipe are seen
    with chdir(here if here.is_dir() else "."), reuse_decoded_images(shared=True):
        return attempt(unit, Path(out))
