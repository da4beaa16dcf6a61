"""From a recipe to a run folder."""

from weiss.training.again import evaluate_run
from weiss.training.guards import NotFiniteError
from weiss.training.loop import StoppedError, train
from weiss.training.seeds import train_seeds

__all__ = ["NotFiniteError", "StoppedError", "evaluate_run", "train", "train_seeds"]
