"""What spawned processes run; in a module of its own, so that they can import it."""

import together
import torch

from weiss import retrieval_metrics


def some_embeddings(number=90, classes=12, seed=0):
    """Noisy clusters: neither trivial nor hopeless to retrieve."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (number,), generator=generator)
    centres = torch.randn(classes, 16, generator=generator)
    return centres[labels] + torch.randn(number, 16, generator=generator), labels


def evaluate(rank, world, path, expected):
    """Evaluate as one of several processes and compare with what one process found."""
    processes = together.meet(rank, world, path)
    embeddings, labels = some_embeddings()
    found = retrieval_metrics(embeddings, labels, group=processes.group, memory_budget=20_000)
    assert found == expected
    together.take_leave()
