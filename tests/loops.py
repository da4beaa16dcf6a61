"""Oracles: the definitions written as nested loops over plain Python numbers or 0-d tensors.

Slow on purpose. Nothing here is shared with the package, and nothing is vectorised.
"""

import math

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


def members_of(labels: Tensor) -> dict[int, list[int]]:
    """The samples of each class that is present."""
    classes = classes_of(labels)
    return {c: [i for i, of in enumerate(classes) if c in of] for c in set().union(*classes)}


def class_sizes(members, average):
    """What the sum over a class is divided by: its size, or the mean size of those present."""
    sizes = {c: len(samples) for c, samples in members.items()}
    if average == "none":
        return dict.fromkeys(sizes, 1)
    if average == "samples":
        return dict.fromkeys(sizes, sum(sizes.values()) / len(sizes))
    return sizes


def pair_loss(
    attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels,
    average="classes",
):  # fmt: skip
    """The pair loss from plain (not logarithmic) energies and links, all pairs one by one."""
    classes, members = classes_of(labels), members_of(labels)
    size = class_sizes(members, average)
    total = embeddings.new_zeros(())
    for c in members:
        inside = embeddings.new_zeros(())
        for i in members[c]:
            for j in members[c]:
                inside = inside + attraction(distance(kind, embeddings[i], embeddings[j]))
        total = total + attraction_link(inside / (2 * size[c] ** 2))
        for other in members:
            if other == c:
                continue
            between = embeddings.new_zeros(())
            for i in members[c]:
                for j in members[other]:
                    if classes[i].isdisjoint(classes[j]):
                        between = between + repulsion(distance(kind, embeddings[i], embeddings[j]))
            total = total + repulsion_link(between / (size[c] * size[other])) / 2
    return total / len(members)


def mean_field_loss(
    attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels, fields,
    average="classes",
):  # fmt: skip
    """The mean-field loss without constraint, over all ordered pairs of all classes."""
    classes, members = classes_of(labels), members_of(labels)
    size = class_sizes(members, average)

    def push(c, other):
        between = embeddings.new_zeros(())
        if c not in members:
            return between
        for i in members[c]:
            if other not in classes[i]:
                between = between + repulsion(distance(kind, embeddings[i], fields[other]))
        return between / size[c]

    total = embeddings.new_zeros(())
    for c in range(len(fields)):
        if c in members:
            inside = embeddings.new_zeros(())
            for i in members[c]:
                inside = inside + attraction(distance(kind, embeddings[i], fields[c]))
            total = total + attraction_link(inside / size[c])
        for other in range(len(fields)):
            if other != c:
                total = total + repulsion_link(push(c, other) + push(other, c)) / 2
    return total / len(members)


def pair_loss_against_rest(
    attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels,
    average="classes",
):  # fmt: skip
    """The pair loss in which a class's averages with all others share a link."""
    classes, members = classes_of(labels), members_of(labels)
    size = class_sizes(members, average)
    total = embeddings.new_zeros(())
    for c in members:
        inside, rest = embeddings.new_zeros(()), embeddings.new_zeros(())
        for i in members[c]:
            for j in members[c]:
                inside = inside + attraction(distance(kind, embeddings[i], embeddings[j]))
        for other in members:
            for i in members[c]:
                for j in members[other]:
                    if other != c and classes[i].isdisjoint(classes[j]):
                        energy = repulsion(distance(kind, embeddings[i], embeddings[j]))
                        rest = rest + energy / (size[c] * size[other])
        total = total + attraction_link(inside / (2 * size[c] ** 2)) + repulsion_link(rest)
    return total / len(members)


def mean_field_loss_against_rest(
    attraction, repulsion, attraction_link, repulsion_link, kind, embeddings, labels, fields,
    average="classes", keeps="full", over="present", divides_by="present",
):  # fmt: skip
    """Its mean-field form without constraint, one class after the other."""
    classes, members = classes_of(labels), members_of(labels)
    size = class_sizes(members, average)
    attracts, repels = embeddings.new_zeros(()), embeddings.new_zeros(())
    for c in range(len(fields)):
        inside, rest = embeddings.new_zeros(()), embeddings.new_zeros(())
        for i in members.get(c, []):
            inside = inside + attraction(distance(kind, embeddings[i], fields[c])) / size[c]
            for other in range(len(fields)):  # the samples of c, against the other fields
                if other not in classes[i] and keeps == "full":
                    rest = rest + repulsion(distance(kind, embeddings[i], fields[other])) / size[c]
        for other in members:  # the other samples, against the field of c
            for i in members[other]:
                if c not in classes[i]:
                    rest = rest + repulsion(distance(kind, embeddings[i], fields[c])) / size[other]
        if c in members:
            attracts = attracts + attraction_link(inside)
        if c in members or over == "all":
            repels = repels + repulsion_link(rest)
    return attracts / len(members) + repels / len(members if divides_by == "present" else fields)


def soft_constraint(repulsion, repulsion_link, kind, fields):
    """The sum over ordered pairs of fields, divided by the number of classes."""
    total = fields.new_zeros(())
    for c in range(len(fields)):
        for other in range(len(fields)):
            if other != c:
                gap = distance(kind, fields[c], fields[other])
                total = total + repulsion_link(repulsion(gap)) ** 2
    return total / len(fields)


def distance_by_loops(kind, x, y):
    if kind == "cosine":
        dot = sum(a * b for a, b in zip(x, y, strict=True))
        return 1 - dot / math.hypot(*x) / math.hypot(*y)
    return math.dist(x, y)


def metrics_by_loops(kind, query, labels, gallery=None, gallery_labels=None, ks=(1, 3, 50)):
    """Every metric of every query from its definition; ties by index."""
    itself = gallery is None
    gallery, gallery_labels = (query, labels) if itself else (gallery, gallery_labels)
    total, queries = {}, 0
    for q, (x, label) in enumerate(zip(query, labels, strict=True)):
        ranked = sorted(
            # Rounded, so that equal points are equal whatever order their sums were taken in.
            (round(distance_by_loops(kind, x, y), 9), g)
            for g, y in enumerate(gallery)
            if not (itself and g == q)
        )
        hits = [bool(set(gallery_labels[g]) & set(label)) for _, g in ranked]
        relevant = sum(hits)
        if relevant == 0:
            continue
        queries += 1
        precision = [sum(hits[: i + 1]) / (i + 1) for i in range(len(hits))]
        values = {
            "r_precision": sum(hits[:relevant]) / relevant,
            "map_at_r": sum(precision[i] for i in range(relevant) if hits[i]) / relevant,
        }
        for k in ks:
            found = [precision[i] for i in range(min(k, len(hits))) if hits[i]]
            values[f"recall_at_{k}"] = float(any(hits[:k]))
            values[f"precision_at_{k}"] = sum(hits[:k]) / k
            values[f"map_at_{k}"] = sum(found) / min(k, relevant)
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return {name: value / queries for name, value in total.items()} | {"queries": queries}


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
