"""What spawned processes run; in a module of its own, so that they can import it."""

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
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world
    )
    embeddings, labels = some_embeddings()
    found = retrieval_metrics(
        embeddings, labels, group=torch.distributed.group.WORLD, memory_budget=20_000
    )
    torch.distributed.destroy_process_group()
    assert found == expected
