"""A loss of Weiss in a LightningModule: the loss is a submodule, its fields get their own rate.

    pip install ".[examples]"
    python examples/lightning_module.py

Lightning saves the fields with the module. Several devices need more, since a loss of metric
learning compares the samples of a whole batch: see examples/accelerate_loop.py.
"""

import argparse
import logging
import warnings

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from weiss import MeanFieldContrastiveLoss, parameter_groups, retrieval_metrics

NUM_CLASSES, INPUT_SIZE, EMBEDDING_SIZE = 20, 48, 16


class Embedding(lightning.LightningModule):
    """A linear network and a mean-field loss over its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(INPUT_SIZE, EMBEDDING_SIZE)
        self.loss = MeanFieldContrastiveLoss(NUM_CLASSES, EMBEDDING_SIZE)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        inputs, labels = batch
        return self.loss(self.network(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW with one rate for the network and one for the fields."""
        return torch.optim.AdamW(parameter_groups(self.network, self.loss, lr=1e-2, class_lr=0.5))

    @torch.no_grad()
    def precision(self, data: TensorDataset) -> float:
        """Return how often the nearest other sample is of the same class."""
        inputs, labels = data.tensors
        return retrieval_metrics(self.network(inputs), labels)["precision_at_1"]


def noisy_classes(per_class: int, seed: int) -> TensorDataset:
    """Return samples around one centre a class, in directions that most of the noise has not."""
    labels = torch.arange(NUM_CLASSES).repeat_interleave(per_class)
    centres = torch.randn(NUM_CLASSES, 8, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(len(labels), INPUT_SIZE, generator=torch.Generator().manual_seed(seed))
    inputs[:, :8] = centres[labels] + 0.3 * inputs[:, :8]
    return TensorDataset(inputs, labels)


def main() -> None:
    """Train, and measure before and after on samples that did not train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples and epochs")
    per_class, epochs = (20, 10) if parser.parse_args().quick else (50, 20)

    torch.manual_seed(0)
    module, test = Embedding(), noisy_classes(20, seed=2)
    before = module.precision(test)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):  # advice on workers and loggers
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet)
        trainer.fit(module, DataLoader(noisy_classes(per_class, 1), 50, shuffle=True))
    after = module.precision(test)
    print(f"new samples, P@1: {before:.2f} before training, {after:.2f} after")


if __name__ == "__main__":
    main()
