"""A training loop with accelerate: one process or several, the loss of the whole batch.

    python examples/accelerate_loop.py
    accelerate launch --num_processes 2 examples/accelerate_loop.py

A loss of metric learning compares the samples of a batch, so the parts of all processes are joined
before it (`gather_batch`). Every process then computes the loss of the whole; gradients of the
network, which DistributedDataParallel averages, are those of one process with the whole batch. The
loss is not prepared: its fields see the same gradient everywhere and stay the same.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from weiss import MeanFieldClassWiseMultiSimilarityLoss, parameter_groups, retrieval_metrics
from weiss._base.processes import gather_batch

NUM_CLASSES, INPUT_SIZE, EMBEDDING_SIZE = 20, 48, 16


def noisy_classes(per_class: int, seed: int) -> TensorDataset:
    """Return samples around one centre a class, in directions that most of the noise has not."""
    labels = torch.arange(NUM_CLASSES).repeat_interleave(per_class)
    centres = torch.randn(NUM_CLASSES, 8, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(len(labels), INPUT_SIZE, generator=torch.Generator().manual_seed(seed))
    inputs[:, :8] = centres[labels] + 0.3 * inputs[:, :8]
    return TensorDataset(inputs, labels)


@torch.no_grad()
def precision(model: torch.nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return how often the nearest other sample is of the same class."""
    inputs, labels = data.tensors
    return retrieval_metrics(model(inputs.to(device)), labels)["precision_at_1"]


def main() -> None:
    """Train, and measure before and after on samples that did not train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples and epochs")
    per_class, epochs = (20, 10) if parser.parse_args().quick else (50, 20)

    torch.manual_seed(0)  # the same network and fields in every process
    train, test = noisy_classes(per_class, seed=1), noisy_classes(20, seed=2)
    accelerator = Accelerator()
    model = torch.nn.Linear(INPUT_SIZE, EMBEDDING_SIZE)
    loss = MeanFieldClassWiseMultiSimilarityLoss(NUM_CLASSES, EMBEDDING_SIZE)
    loss.to(accelerator.device)
    optimizer = torch.optim.AdamW(parameter_groups(model, loss, lr=1e-2, class_lr=0.5))
    loader = DataLoader(train, batch_size=50 // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    before = precision(model, test, accelerator.device)
    for _ in range(epochs):
        for inputs, labels in loader:
            embeddings, classes = gather_batch(model(inputs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss(embeddings, classes))
            optimizer.step()
    after = precision(model, test, accelerator.device)
    accelerator.print(f"new samples, P@1: {before:.2f} before training, {after:.2f} after")
    accelerator.end_training()


if __name__ == "__main__":
    main()
