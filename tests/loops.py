"""Oracles: the definitions written as nested loops over plain Python numbers or 0-d tensors.

Slow on purpose. Nothing here is shared with the package, and nothing is vectorised.
"""

import torch
from torch import Tensor


def distance(kind: str, x: Tensor, y: Tensor) -> Tensor:
    if kind == "cosine":
        return 1 - (x @ y) / (x.norm() * y.norm())
    difference = x - y
    if not difference.any():
        return (difference * 0).sum()
    return difference.norm()


def classes_of(labels: Tensor) -> list[set[int]]:
    """The set of classes of each sample, for class indices or multi-hot labels."""
    if labels.ndim == 1:
        return [{int(label)} for label in labels]
    return [{c for c, hot in enumerate(row) if hot} for row in labels.tolist()]


def pair_loss(attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels):
    """The pair loss from plain (not logarithmic) energies and links, all pairs one by one."""
    classes = classes_of(labels)
    present = sorted(set().union(*classes))
    members = {c: [i for i, of in enumerate(classes) if c in of] for c in present}
    total = embeddings.new_zeros(())
    for c in present:
        inside = embeddings.new_zeros(())
        for i in members[c]:
            for j in members[c]:
                inside = inside + attraction(distance(kind, embeddings[i], embeddings[j]))
        total = total + attraction_link(inside / (2 * len(members[c]) ** 2))
        for other in present:
            if other == c:
                continue
            between = embeddings.new_zeros(())
            for i in members[c]:
                for j in members[other]:
                    if classes[i].isdisjoint(classes[j]):
                        between = between + repulsion(distance(kind, embeddings[i], embeddings[j]))
            between = between / (len(members[c]) * len(members[other]))
            total = total + repulsion_link(between) / 2
    return total / len(present)


def mean_field_loss(
    attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels, fields
):
    """The mean-field loss without constraint, over all ordered pairs of all classes."""
    classes = classes_of(labels)
    present = sorted(set().union(*classes))
    members = {c: [i for i, of in enumerate(classes) if c in of] for c in range(len(fields))}

    def push(c, other):
        if not members[c]:
            return embeddings.new_zeros(())
        between = embeddings.new_zeros(())
        for i in members[c]:
            if other not in classes[i]:
                between = between + repulsion(distance(kind, embeddings[i], fields[other]))
        return between / len(members[c])

    total = embeddings.new_zeros(())
    for c in range(len(fields)):
        if members[c]:
            inside = embeddings.new_zeros(())
            for i in members[c]:
                inside = inside + attraction(distance(kind, embeddings[i], fields[c]))
            total = total + attraction_link(inside / len(members[c]))
        for other in range(len(fields)):
            if other != c:
                total = total + repulsion_link(push(c, other) + push(other, c)) / 2
    return total / len(present)


def soft_constraint(repulsion, repulsion_link, kind, fields):
    """The sum over ordered pairs of fields, divided by the number of classes."""
    total = fields.new_zeros(())
    for c in range(len(fields)):
        for other in range(len(fields)):
            if other != c:
                gap = distance(kind, fields[c], fields[other])
                total = total + repulsion_link(repulsion(gap)) ** 2
    return total / len(fields)


def random_batch(seed: int, batch: int = 7, num_classes: int = 5, size: int = 3, labels_each=None):
    """Random float64 embeddings, fields and labels; multi-hot with up to `labels_each` classes."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, size, generator=generator, dtype=torch.float64)
    fields = torch.randn(num_classes, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    if labels_each is not None:
        hot = torch.zeros(batch, num_classes, dtype=torch.long)
        for i in range(batch):
            for _ in range(labels_each):
                hot[i, torch.randint(num_classes, (1,), generator=generator)] = 1
        labels = hot
    return embeddings, labels, fields
