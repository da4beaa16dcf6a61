"""From a recipe to a run folder."""

from weiss.training.again import Embedded, embed_runs, evaluate_run
from weiss.training.guards import NotFiniteError, StoppedError, StopRequest
from weiss.training.loop import train
from weiss.training.seeds import train_seeds
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
