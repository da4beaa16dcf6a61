"""A loss of Weiss inside pytorch-metric-learning: its trainer, its MultipleLosses, its sampler.

    python examples/pml_trainer.py

Nothing has to be wrapped. Two things differ from a loss of its own: the fields have a rate of
theirs, hence an optimiser of their own, and there is no miner, since a field is never hard to find.
"""

import argparse
import logging
import warnings

import torch
from torch.utils.data import TensorDataset

from weiss import MeanFieldContrastiveLoss, parameter_groups, retrieval_metrics

with warnings.catch_warnings(action="ignore"):  # its optional parts say what they miss
    from pytorch_metric_learning import losses, samplers, trainers

NUM_CLASSES, INPUT_SIZE, EMBEDDING_SIZE = 20, 48, 16


def noisy_classes(per_class: int, seed: int) -> TensorDataset:
    """Return samples around one centre a class, in directions that most of the noise has not."""
    labels = torch.arange(NUM_CLASSES).repeat_interleave(per_class)
    centres = torch.randn(NUM_CLASSES, 8, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(len(labels), INPUT_SIZE, generator=torch.Generator().manual_seed(seed))
    inputs[:, :8] = centres[labels] + 0.3 * inputs[:, :8]
    return TensorDataset(inputs, labels)


@torch.no_grad()
def precision(model: torch.nn.Module, data: TensorDataset) -> float:
    """Return how often the nearest other sample is of the same class."""
    inputs, labels = data.tensors
    return retrieval_metrics(model(inputs), labels)["precision_at_1"]


def main() -> None:
    """Train with a mean-field loss and ProxyAnchor together, and measure before and after."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples and epochs")
    per_class, epochs = (20, 10) if parser.parse_args().quick else (50, 20)

    torch.manual_seed(0)
    train, test = noisy_classes(per_class, seed=1), noisy_classes(20, seed=2)
    model = torch.nn.Linear(INPUT_SIZE, EMBEDDING_SIZE)
    ours = MeanFieldContrastiveLoss(NUM_CLASSES, EMBEDDING_SIZE)
    theirs = losses.ProxyAnchorLoss(NUM_CLASSES, EMBEDDING_SIZE)
    loss = losses.MultipleLosses([ours, theirs], weights=[1.0, 0.1])
    network, *class_vectors = parameter_groups(model, loss, lr=1e-2, class_lr=0.5)

    before = precision(model, test)
    logging.getLogger("PML").setLevel(logging.ERROR)
    trainer = trainers.MetricLossOnly(
        models={"trunk": model},
        optimizers={
            "trunk_optimizer": torch.optim.AdamW([network]),
            "metric_loss_optimizer": torch.optim.AdamW(class_vectors),
        },
        batch_size=50,
        loss_funcs={"metric_loss": loss},
        dataset=train,
        mining_funcs={},
        sampler=samplers.MPerClassSampler(train.tensors[1], m=5, length_before_new_iter=len(train)),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    with warnings.catch_warnings(action="ignore"):
        trainer.train(num_epochs=epochs)
    after = precision(model, test)
    print(f"new samples, P@1: {before:.2f} before training, {after:.2f} after")


if __name__ == "__main__":
    main()
