"""Which sample belongs to which of the classes present in a batch.

Dimensions: B samples, C classes, P memberships (one a sample with class indices, one for each 1 of
multi-hot labels), K slots, one for each class present.

The number of classes present decides shapes, so the host must know it: that is the one transfer of
a forward pass, and it also carries the results of the checks. Without checks there is no transfer:
there are as many slots as memberships, and the slots left over stay unused.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weiss._base import checks


@dataclass(frozen=True)
class Membership:
    """The memberships of a batch, grouped into slots by class.

    Attributes:
        batch: B, the number of samples.
        sample_P: ``(P,)`` the sample of each membership; None when that is simply 0 to B - 1.
        class_P: ``(P,)`` its class; ``num_classes`` marks padding, which no loss may count.
        slot_P: ``(P,)`` its slot.
        class_K: ``(K,)`` the class of each slot; 0 where the slot is unused.
        used_K: ``(K,)`` bool, whether the slot holds a class.
        count_K: ``(K,)`` how many samples the class has, n_c; at least 1, also where unused.
        one_each: True if the host knows that no class has a second sample, no sample a second
            class.
    """

    batch: int
    sample_P: Tensor | None
    class_P: Tensor
    slot_P: Tensor
    class_K: Tensor
    used_K: Tensor
    count_K: Tensor
    one_each: bool = False

    @property
    def num_slots(self) -> int:
        """How many slots there are, used or not."""
        return len(self.class_K)

    def rows(self, x_B: Tensor) -> Tensor:
        """Return the row ``x_B[i]`` of each membership's sample, ``(P, ...)``."""
        return x_B if self.sample_P is None else x_B.index_select(0, self.sample_P)

    def own(self, num_classes: int) -> Tensor:
        """Return ``(B, C)`` bool: does the sample belong to the class?"""
        # One column more than classes, for the padding.
        return self._marked(self.class_P, num_classes + 1)[:, :num_classes]

    def own_block(self, low: int, high: int) -> Tensor:
        """Return the columns ``low`` to ``high - 1`` of `own`, without the others."""
        is_here_P = (self.class_P >= low) & (self.class_P < high)
        column_P = (self.class_P - low).masked_fill(~is_here_P, high - low)
        return self._marked(column_P, high - low + 1)[:, : high - low]

    def own_slots(self) -> Tensor:
        """Return ``(B, K)`` bool: does the sample belong to the slot's class?"""
        return self._marked(self.slot_P, self.num_slots) & self.used_K

    def sharing(self) -> Tensor:
        """Return ``(P, P)`` bool: do the samples of two memberships share any class?"""
        if self.sample_P is None:
            return self.slot_P[:, None] == self.slot_P
        is_member_PK = self.rows(self.own_slots()).float()
        return is_member_PK @ is_member_PK.T > 0

    def different(self) -> Tensor:
        """Return ``(K, K)`` bool: two different classes, both present."""
        itself_KK = torch.eye(self.num_slots, dtype=torch.bool, device=self.used_K.device)
        return self.used_K[:, None] & self.used_K & ~itself_KK

    def _marked(self, column_P: Tensor, num_columns: int) -> Tensor:
        """Return ``(B, num_columns)`` bool, True at (sample, column) of each membership."""
        device = self.slot_P.device
        sample_P = self.sample_P
        if sample_P is None:
            sample_P = torch.arange(self.batch, device=device)
        marked = torch.zeros(self.batch, num_columns, dtype=torch.bool, device=device)
        return marked.index_put((sample_P, column_P), torch.ones_like(marked[0, 0]))


def members_of_a_batch(
    labels: Tensor,
    embeddings: Tensor,
    num_classes: int | None,
    owner: str,
    *,
    check: bool,
    max_labels_per_sample: int | None = None,
) -> Membership:
    """Group a batch by class, with at most one transfer from the device to the host.

    Args:
        labels: ``(B,)`` int64 class indices or ``(B, C)`` multi-hot, as
            `weiss._base.checks.labels_of_a_batch` returns them.
        embeddings: ``(B, D)``; only tested for being finite, and only if ``check``.
        num_classes: C, or None for pair losses, which take any class index.
        owner: name of the loss, for messages.
        check: test the values of labels and embeddings. If False, class indices need no transfer,
            nor do multi-hot labels with ``max_labels_per_sample``.
        max_labels_per_sample: the most classes a sample may have in multi-hot labels.
    """
    if labels.ndim == 2:
        return _from_multi_hot(labels, embeddings, owner, check, max_labels_per_sample)
    slot_P, sorted_P, present = _slots(labels)
    if not check:
        return _grouped(len(labels), None, labels, slot_P, len(labels), num_classes)
    finite = embeddings.isfinite().all()
    low, high, num_present, all_finite = torch.stack(
        [sorted_P[0], sorted_P[-1], present, finite.long()]
    ).tolist()
    if num_classes is not None:
        checks.labels_in_range(low, high, num_classes, owner)
    if not all_finite:
        checks.finite_embeddings(embeddings, owner)
    members = _grouped(len(labels), None, labels, slot_P, num_present, num_classes)
    return replace(members, one_each=num_present == len(labels))


def _from_multi_hot(
    labels_BC: Tensor,
    embeddings: Tensor,
    owner: str,
    check: bool,
    max_labels_per_sample: int | None,
) -> Membership:
    batch, num_classes = labels_BC.shape
    hot_BC = labels_BC != 0
    num_labels_B = hot_BC.sum(dim=1)
    most, total, num_present = max_labels_per_sample, None, None
    if check or most is None:
        fewest, found, total, num_present, all_binary, all_finite = torch.stack(
            [
                num_labels_B.min(),
                num_labels_B.max(),
                num_labels_B.sum(),
                hot_BC.any(dim=0).sum(),
                (hot_BC == labels_BC).all().long(),
                embeddings.isfinite().all().long(),
            ]
        ).tolist()
        if check:
            if not all_binary:
                wrong = labels_BC[(labels_BC != 0) & (labels_BC != 1)][0].item()
                raise ValueError(
                    f"multi-hot labels must be 0 or 1 for {owner}; got {wrong:g}. "
                    "For class indices pass a tensor of shape (batch,)."
                )
            if fewest == 0:
                row = int((num_labels_B == 0).nonzero()[0])
                remedy = "Leave such samples out of the batch."
                if num_classes == 1:
                    remedy = "For class indices pass labels.squeeze(1)."
                raise ValueError(
                    f"every sample must belong to at least one class for {owner}; row {row} of the "
                    f"multi-hot labels is all 0. {remedy}"
                )
            if most is not None and found > most:
                raise ValueError(
                    f"a sample may have at most max_labels_per_sample={most} classes for {owner}; "
                    f"one has {found}. Raise max_labels_per_sample."
                )
            if not all_finite:
                checks.finite_embeddings(embeddings, owner)
        most = found
    assert most is not None
    top_BL = hot_BC.to(torch.uint8).topk(min(most, num_classes), dim=1)
    is_member_P = top_BL.values.flatten() > 0
    class_P = top_BL.indices.flatten().masked_fill(~is_member_P, num_classes)
    sample_P = torch.arange(batch, device=labels_BC.device).repeat_interleave(
        top_BL.indices.shape[1], output_size=class_P.numel()
    )
    if total is not None:  # the padding can be cut off, since its amount is known
        keep_P = is_member_P.to(torch.uint8).argsort(descending=True, stable=True)[:total]
        class_P, sample_P = class_P[keep_P], sample_P[keep_P]
    slot_P, _, _ = _slots(class_P)
    num_slots = num_present if num_present is not None else class_P.numel()
    return _grouped(batch, sample_P, class_P, slot_P, num_slots, num_classes)


def _slots(class_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number the distinct classes in rising order: slot of each, sorted classes, how many."""
    sorted_P, order_P = class_P.sort(stable=True)
    is_new_P = torch.ones_like(sorted_P)
    is_new_P[1:] = sorted_P[1:] != sorted_P[:-1]
    slot_sorted_P = is_new_P.cumsum(0) - 1
    slot_P = torch.empty_like(slot_sorted_P).scatter(0, order_P, slot_sorted_P)
    return slot_P, sorted_P, slot_sorted_P[-1] + 1


def _grouped(
    batch: int,
    sample_P: Tensor | None,
    class_P: Tensor,
    slot_P: Tensor,
    num_slots: int,
    num_classes: int | None,
) -> Membership:
    zeros_K = class_P.new_zeros(num_slots)
    class_K = zeros_K.scatter(0, slot_P, class_P)
    count_K = zeros_K.scatter_add(0, slot_P, torch.ones_like(slot_P))
    used_K = count_K > 0
    if num_classes is not None:
        used_K = used_K & (class_K < num_classes)
        class_K = class_K * used_K
    return Membership(batch, sample_P, class_P, slot_P, class_K, used_K, count_K.clamp_min(1))
