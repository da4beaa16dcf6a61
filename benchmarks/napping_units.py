"""Units of a known length, for `bench_executors.py`; workers import this file."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from weiss.comparing.plan import Plan
from weiss.comparing.run_table import Traditional
from weiss.comparing.units import Result, Results, Unit, computed


def nap(seconds: float, folder: Path) -> Result:
    """Take a known time and no core: executors are measured, not what units do to each other."""
    time.sleep(seconds)
    return {"seconds": seconds}


class Napping(Traditional):
    """The traditional protocol, whose units only wait. The option ``nap`` is their length."""

    def ready(self, done: Results) -> list[Unit]:
        """Return the units of the protocol, with other work."""
        work = computed("", partial(nap, self.options["nap"]))
        return [replace(work, key=unit.key) for unit in super().ready(done)]


def napping(plan: Plan, seconds: float) -> Napping:
    """Return a plan with the units of another, each of which takes a known time."""
    return Napping(plan.recipe, {**plan.options, "nap": seconds})
