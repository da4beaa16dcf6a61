"""From a recipe to a run folder."""

from weiss._base.interrupts import StoppedError, StopRequest
from weiss.runs.evaluate import embed_runs, evaluate_run
from weiss.runs.evaluator import Embedded, NotFiniteError
from weiss.training.seeds import train_seeds
from weiss.training.trainer import train
from weiss.training.untrained import measure_untrained

__all__ = [
    "Embedded",
    "NotFiniteError",
    "StopRequest",
    "StoppedError",
    "embed_runs",
    "evaluate_run",
    "measure_untrained",
    "train",
    "train_seeds",
]
