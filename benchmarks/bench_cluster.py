"""A thousand workers that die, simulated: what plan and driver do with them.

Real are the plans (which unit is ready when), the driver (`weiss.comparing.driver.drive`) and the
rules of the executor for Ray (how many units wait, how often one is begun). Simulated, by a queue
of events with a clock of its own, are the workers: a unit takes a drawn time, its worker may die,
what was done since the last checkpoint is lost, the death is noticed and the worker replaced after
a while. Also the driver may die: then another begins with what lies on the disk.

The rival is the same cluster without any failure. Computed: time by the simulated clock, work done
twice, units that were given up. Measured: the time of plan and driver, by the clock of the
processor. Every draw follows from `--seed`; a unit has the same length and result in every run, so
the tables can be compared.

    python benchmarks/bench_cluster.py
    python benchmarks/bench_cluster.py --smoke                # 20 workers, keeps nothing
"""

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from record import keep, options_of

from weiss.comparing import reality_check, traditional
from weiss.comparing.driver import drive
from weiss.comparing.executor import TRIES, Executor, Outcome
from weiss.comparing.plan import Plan
from weiss.comparing.ray_cluster import LEAST_POOL
from weiss.comparing.units import Result, Results, Unit
from weiss.runs import recipe_from

MINUTE, HOUR = 60.0, 3600.0
LENGTH, SPREAD = 40 * MINUTE, 0.35
"""Median time of a training, and the standard deviation of its logarithm."""
CHECKPOINT, NOTICED, REPLACED, RESTARTED = 60.0, 20.0, 2 * MINUTE, MINUTE
"""Time between checkpoints, until a death is noticed, until its worker or its driver is back."""
LOSSES = [
    *("mf_cwms", "mf_contrastive", "mf_binomial", "cwms", "contrastive", "binomial", "ms"),
    *("ms_miner", "arcface", "cosface", "proxy_nca", "proxy_anchor", "norm_softmax", "triplet"),
]


class DriverDiedError(Exception):
    """The process that drives the comparison was killed."""


@dataclass
class World:
    """What outlives a driver: the clock, the disk, and what units have saved."""

    seed: int
    workers: int
    worker_life: float  # mean seconds; 0: for ever
    driver_life: float
    chance: random.Random
    clock: float = 0.0
    disk: dict[str, Result] = field(default_factory=dict)
    saved: Counter[str] = field(default_factory=Counter)  # seconds of work in checkpoints
    worked: float = 0.0  # by all workers, with what was lost
    deaths: int = 0
    driver_deaths: int = 0
    failed: int = 0

    def length(self, unit: Unit) -> float:
        """Return how long a unit takes in all; it does not depend on who does it."""
        if unit.is_light or unit.key.endswith("/ensemble"):
            return 2.0 if unit.is_light else MINUTE
        return LENGTH * random.Random(f"{self.seed} {unit.key}").lognormvariate(0, SPREAD)

    def result(self, unit: Unit) -> Result:
        """Return what a unit finds: a score, settings, or those of an ensemble."""
        drawn = random.Random(f"result {self.seed} {unit.key}")
        if unit.key.endswith("/settings"):
            return {"settings": {"drawn": drawn.random()}}
        return {"map_at_r": drawn.random()}


class OnDisk:
    """A plan whose units look for their results on the simulated disk."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan, self._disk = plan, world.disk
        self.num_units = plan.num_units

    def ready(self, done: Results) -> list[Unit]:
        """Return what the plan does."""
        ready = self._plan.ready(done)
        if len(done) == len(self._disk):  # there is no more to be found
            return ready
        return [
            replace(unit, found=lambda folder, key=unit.key: self._disk.get(key)) for unit in ready
        ]


class SimulatedCluster(Executor):
    """Does units on the simulated workers, by the rules of `RayCluster`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free, self._queue = world.workers, []  # type: int, list[Unit]
        self._events: list[tuple[float, int, str, Unit | None]] = []
        self._number = itertools.count()
        self._begun: Counter[str] = Counter()
        self._running: dict[str, float] = {}  # since when
        if world.driver_life:
            self._at(world.chance.expovariate(1 / world.driver_life), "driver dies", None)

    def __exit__(self, *_: object) -> None:
        """The tasks of a driver that is gone are ended by Ray; checkpoints stay."""
        for key, since in self._running.items():
            self._save(key, since)

    @property
    def room(self) -> int:
        """As of `RayCluster`."""
        taken = len(self._queue) + len(self._running)
        return max(2 * self._world.workers, LEAST_POOL) - taken

    def start(self, unit: Unit) -> None:
        """Let it wait for a worker."""
        if unit.is_light:  # needs no place
            self._begin(unit)
        else:
            self._queue.append(unit)
            self._assign()

    def wait(self, seconds: float) -> list[Outcome]:
        """Go on to the next event."""
        assert self._events, "units must run, or the driver would wait for ever"
        self._world.clock, _, what, unit = heapq.heappop(self._events)
        outcomes = self._after(what, unit)
        self._assign()
        return outcomes

    def _after(self, what: str, unit: Unit | None) -> list[Outcome]:
        world = self._world
        if what == "driver dies":
            world.driver_deaths += 1
            raise DriverDiedError
        if what == "replaced":
            self._free += 1
        if unit is None:
            return []
        if what == "noticed":
            if self._begun[unit.key] < TRIES:
                self._queue.insert(0, unit)
                return []
            world.failed += 1
            return [Outcome(unit.key, failed="its workers died")]
        since = self._running.pop(unit.key)
        if what == "dies":
            world.deaths += 1
            self._save(unit.key, since)
            self._at(NOTICED, "noticed", unit)
            self._at(REPLACED, "replaced", None)
            return []
        self._free += not unit.is_light
        world.worked += world.clock - since
        world.disk[unit.key] = world.result(unit)  # first on the disk
        return [Outcome(unit.key, world.disk[unit.key])]

    def _assign(self) -> None:
        while self._queue and self._free > 0:
            unit = self._queue.pop(0)
            self._free -= 1
            self._begin(unit)

    def _begin(self, unit: Unit) -> None:
        world = self._world
        self._begun[unit.key] += 1
        left = world.length(unit) - world.saved[unit.key]
        mortal = world.worker_life and not unit.is_light
        life = world.chance.expovariate(1 / world.worker_life) if mortal else left
        self._running[unit.key] = world.clock
        self._at(min(life, left), "dies" if life < left else "done", unit)

    def _save(self, key: str, since: float) -> None:
        world = self._world
        world.worked += world.clock - since
        world.saved[key] += int((world.clock - since) // CHECKPOINT * CHECKPOINT)

    def _at(self, after: float, what: str, unit: Unit | None) -> None:
        heapq.heappush(self._events, (self._world.clock + after, next(self._number), what, unit))


def simulate(plan: Plan, world: World) -> dict[str, Any]:
    """Carry out a plan, start it again whenever its driver dies or units failed."""
    on_disk: Any = OnDisk(plan, world)
    commands, first_failed, start = 0, None, time.process_time()
    while first_failed is None or len(world.disk) < plan.num_units:
        commands += 1
        try:
            with SimulatedCluster(world) as cluster:
                drive(on_disk, Path("nowhere"), cluster, say=lambda line: None)
            first_failed = world.failed if first_failed is None else first_failed
        except DriverDiedError:
            world.clock += RESTARTED
    return {
        "hours": world.clock / HOUR,
        "deaths": world.deaths,
        "driver_deaths": world.driver_deaths,
        "commands": commands,
        "given_up": first_failed,
        "worked_hours": world.worked / HOUR,
        "driver_seconds": time.process_time() - start,
    }


def scenarios(smoke: bool) -> list[tuple[str, Plan, Sequence[tuple[str, float, float]]]]:
    """Return the plans, each with lives of workers and drivers, in seconds."""
    recipe = recipe_from("cub_mlrc", ["train.device=cpu"])
    losses = LOSSES[:3] if smoke else LOSSES
    lives = [
        ("no failures", 0.0, 0.0),
        ("a worker lives 24 h", 24 * HOUR, 0.0),
        ("a worker lives 4 h", 4 * HOUR, 0.0),
        ("a worker lives 4 h, a driver 1 h", 4 * HOUR, HOUR),
    ]
    options = {"trials": 4, "repeats": 2} if smoke else {"trials": 50, "repeats": 10}
    wide = reality_check(recipe, losses, at_once=8, **options)
    return [
        ("traditional", traditional(recipe, losses, seeds=10 if smoke else 200), lives),
        ("reality-check", reality_check(recipe, losses, **options), lives[::3]),
        ("reality-check, 8 trials at once", wide, lives[::3]),
    ]


def main() -> None:
    parser = options_of(__doc__, device=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1000)
    arguments = parser.parse_args()
    workers = 20 if arguments.smoke else arguments.workers
    rows = []
    for name, plan, lives in scenarios(arguments.smoke):
        truth: dict[str, Result] = {}
        for how, worker_life, driver_life in lives:
            chance = random.Random(arguments.seed)
            world = World(arguments.seed, workers, worker_life, driver_life, chance)
            found = simulate(plan, world)
            if not truth:
                truth, whole = world.disk, found
            assert world.disk == truth, "the table must not depend on failures"
            row = {
                "comparison": name,
                "failures": how,
                "workers": workers,
                "seed": arguments.seed,
                "units": plan.num_units,
                "simulated_hours": round(found["hours"], 2),
                "time_over_no_failures": round(found["hours"] / whole["hours"], 3),
                "work_over_no_failures": round(found["worked_hours"] / whole["worked_hours"], 4),
                "workers_busy": round(found["worked_hours"] / found["hours"] / workers, 3),
                "worker_deaths": found["deaths"],
                "driver_deaths": found["driver_deaths"],
                "commands": found["commands"],
                "given_up_at_first": found["given_up"],
                "driver_busy": round(found["driver_seconds"] / (found["hours"] * HOUR), 6),
            }
            rows.append(row)
            print(
                f"{name}, {plan.num_units} units, {workers} workers, {how}: "
                f"{found['hours']:.1f} simulated hours ({row['time_over_no_failures']:.3f} x), "
                f"{found['deaths']} deaths, work {row['work_over_no_failures']:.4f} x, "
                f"{found['given_up']} units given up at first; workers are busy "
                f"{100 * row['workers_busy']:.0f} % of the time, the driver "
                f"{100 * row['driver_busy']:.3f} % of it",
                flush=True,
            )
    keep(arguments, "cluster", rows)


if __name__ == "__main__":
    main()
