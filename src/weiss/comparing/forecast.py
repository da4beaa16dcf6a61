"""What a command would do: how many trainings, how many of them are finished, and the time left."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weiss._base.progress import duration
from weiss.comparing.driver import check_request
from weiss.comparing.folder import continued
from weiss.comparing.plan import Plan
from weiss.comparing.units import results_on_disk


@dataclass(frozen=True)
class Forecast:
    """What a comparison needs; nothing is started or written for it.

    Attributes:
        num_trainings: in all; an upper bound where trials can be pruned or skipped.
        num_others: units that train nothing: networks before training, measurements, ensembles.
        num_finished: trainings whose result is in the folder.
        seconds: of each finished training that has recorded its time.
        workers: how many share the work.
    """

    num_trainings: int
    num_others: int
    num_finished: int
    seconds: tuple[float, ...]
    workers: int

    @property
    def seconds_left(self) -> float | None:
        """``open trainings x mean seconds of a finished one / workers``; None before the first."""
        if not self.seconds:
            return None
        left = self.num_trainings - self.num_finished
        return left * sum(self.seconds) / len(self.seconds) / min(self.workers, max(left, 1))

    def in_words(self) -> str:
        """Return all of it in a few sentences."""
        words = f"{_several(self.num_trainings, 'training')} and "
        words += f"{_several(self.num_others, 'unit')} without training."
        if not self.num_trainings:
            return words
        are = "is" if self.num_finished == 1 else "are"
        words += f" {_several(self.num_finished, 'training')} {are} finished."
        if self.seconds_left is None:
            return f"{words} How long it takes can be told after the first."
        if self.num_finished >= self.num_trainings:
            return words
        mean = sum(self.seconds) / len(self.seconds)
        sharing = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return (
            f"{words} The others take about {duration(self.seconds_left)} with {sharing}, if each "
            f"takes {duration(mean)}, the mean of those that are finished."
        )


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def forecast(
    plan: Plan,
    out: str | Path,
    *,
    workers: int = 1,
    cluster: str | None = None,
    needs: Mapping[str, float] | None = None,
) -> Forecast:
    """Return what it would take to carry out a plan in a folder; nothing is written.

    Args:
        plan: the comparison.
        out: its folder; it need not exist.
        workers: how many processes would share the work.
        cluster: as for `carry_out`; it is not asked how many units it does at a time.
        needs: as for `carry_out`.

    Raises:
        ValueError: the plan cannot be carried out, or the folder holds another comparison.
    """
    out = Path(out)
    check_request(plan, out, workers, cluster, needs or {})
    plan = continued(plan, out)
    results = results_on_disk(plan.ready, out).values()
    # Other units have no epochs: settings, ensembles, measurements, networks before training.
    finished = [result for result in results if result.get("epochs") or "failed" in result]
    return Forecast(
        num_trainings=plan.num_trainings,
        num_others=plan.num_units - plan.num_trainings,
        num_finished=min(len(finished), plan.num_trainings),
        seconds=tuple(float(result["seconds"]) for result in finished if "seconds" in result),
        workers=workers,
    )
