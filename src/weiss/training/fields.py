"""Mean fields that have no gradient step: set at the beginning of an epoch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import class_means_of, solve_fields
from weiss.runs import Fields
from weiss.runs.experiment import Experiment


def place_fields(
    loss: nn.Module,
    settings: Fields,
    epoch: int,
    experiment: Experiment,
    embed: Callable[[], Tensor],
) -> None:
    """Set the fields at the beginning of an epoch, if the recipe asks for it.

    ``embed`` returns the embeddings ``(N, D)`` of the training items.
    """
    if not isinstance(loss, MeanFieldLoss) or settings.how == "joint":
        return
    solves = settings.how == "alternating" and epoch % settings.every == 0
    if solves or epoch == 0:
        embeddings, labels = embed(), experiment.train_labels()
        if epoch == 0:
            # A solution is close to the class means.
            with torch.no_grad():
                loss.fields.copy_(class_means_of(embeddings, labels, len(loss.fields)))
        if solves:
            passes = range(epoch * settings.passes, (epoch + 1) * settings.passes)
            batches = [rows for p in passes for rows in experiment.sampler.batches(p)]
            solve_fields(loss, embeddings, labels, batches, settings.lr)
    # Each process changes its own copy; on a GPU sums may differ in their last bits.
    experiment.processes.agree([loss.fields.data])
