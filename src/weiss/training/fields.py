"""Mean fields that are set at the beginning of an epoch: at class means, or solved for."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from weiss._base import draws
from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import class_means_of, solve_fields
from weiss.runs import Fields
from weiss.runs.experiment import Experiment
from weiss.theory.distances import unit

SPREAD = 0.3
"""How far the fields of a class begin from the class mean, over its length, if there are several:
far enough that a sample has a nearest one, near enough that all are nearest to their own class."""


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
    if not isinstance(loss, MeanFieldLoss):
        return
    if settings.how == "joint":
        if settings.start == "class_means" and epoch == 0:
            _start_at_class_means(loss, embed(), experiment)
        return
    solves = settings.how == "alternating" and epoch % settings.every == 0
    if solves or epoch == 0:
        embeddings, labels = embed(), experiment.train_labels()
        if epoch == 0:
            # A solution is close to the class means.
            with torch.no_grad():
                means_CD = class_means_of(embeddings, labels, len(loss.fields))
                loss.fields.copy_(_spread(means_CD, loss, experiment))
        if solves:
            passes = range(epoch * settings.passes, (epoch + 1) * settings.passes)
            batches = [rows for p in passes for rows in experiment.sampler.batches(p)]
            solve_fields(loss, embeddings, labels, batches, settings.lr)
    # Each process changes its own copy; on a GPU sums may differ in their last bits.
    experiment.processes.agree([loss.fields.data])


@torch.no_grad()
def _start_at_class_means(loss: MeanFieldLoss, embeddings: Tensor, experiment: Experiment) -> None:
    """Set fields that train to the means of their classes, before the first step.

    Under cosine only their direction counts; they get the length of random ones, sqrt(D), because
    the learning rate of fields is made for that length.
    """
    means_CD = class_means_of(embeddings, experiment.train_labels(), experiment.num_classes)
    experiment.processes.agree([means_CD])  # on a GPU sums may differ in their last bits
    if loss.distance == "cosine":
        means_CD = unit(means_CD) * math.sqrt(means_CD.shape[1])
    means = _spread(means_CD, loss, experiment)
    loss.fields.copy_(means[loss.shard.first :][: len(loss.fields)])


def _spread(means_CD: Tensor, loss: MeanFieldLoss, experiment: Experiment) -> Tensor:
    """Return class means as they are, or ``(C, S, D)`` fields around them for S > 1 a class.

    Equal fields have equal gradients and would stay equal: each gets a random part of its own, of
    `SPREAD` times the length of its mean, from the seed of the recipe alone.
    """
    each = loss.fields_per_class
    if each == 1:
        return means_CD
    generator = torch.Generator().manual_seed(draws.seed_at(experiment.recipe.seed, draws.SPREAD))
    shape = (len(means_CD), each, means_CD.shape[1])
    random_CSD = torch.randn(shape, generator=generator).to(means_CD)
    length_C = means_CD.norm(dim=1) / math.sqrt(means_CD.shape[1])
    spread_CSD: Tensor = SPREAD * length_C[:, None, None] * random_CSD
    return means_CD[:, None] + spread_CSD
