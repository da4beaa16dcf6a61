"""What a loss finds for a batch; and how far from the truth a kernel may be.

The truth is the plain formula with autograd, in float64. A kernel in another precision may err no
more than the plain formula in that precision does, and a little. And how large tensors become.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weiss
from weiss.losses import loss_settings
from weiss.losses.by_name import DERIVED
from weiss.theory.interactions import closed_form_of

PAIR = [name for name, entry in DERIVED.items() if entry.sampling == "pairs"]
MEAN_FIELD = [name for name in DERIVED if name not in PAIR]
OURS = PAIR + MEAN_FIELD
RATED = [name for name in OURS if "alpha" in loss_settings(name, {})]
FUSED = [n for n in MEAN_FIELD if closed_form_of(weiss.make_loss(n, 1, 1).interactions)]
# The default alpha adds a constant of 69, beside which no error would be seen.
GENTLE = {name: {} for name in MEAN_FIELD} | {"mf_cwms": {"alpha": 2.0, "beta": 40.0, "delta": 0.3}}


def soft(name):
    """Return settings whose central differences resolve something, unlike those of e^{-80 d}."""
    margin = {"margin": 0.1} if name.endswith("rest_ms") else {}
    return {"alpha": 2.0, "beta": 5.0, "delta": 0.6} | margin if name in RATED else {}


def clustered(batch, num_classes, size, seed=0, same=0, all_classes=False, zeros=False):
    """Return float32 embeddings near their fields, labels, and fields of which some are close.

    The first `same` samples are of one class. With `all_classes` there is one sample of each; with
    `zeros` a sample and two fields, one of a class that is present, have length 0.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    centres = normal(max(num_classes // 8, 1), size)
    fields = centres[torch.arange(num_classes) % len(centres)] + 0.6 * normal(num_classes, size)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    labels[:same] = labels[0]
    embeddings = fields[labels] + 0.4 * normal(batch, size)
    if all_classes:
        labels = torch.arange(batch).flip(0)
    if zeros:
        embeddings[2], fields[labels[3]], fields[-1] = 0.0, 0.0, 0.0
    return embeddings, labels, fields


def with_fields(name, fields, **arguments):
    """Make a loss with these fields ``(C, D)`` or ``(C, S, D)``, in their dtype."""
    num_classes, *several, size = fields.shape
    arguments |= {"fields_per_class": several[0]} if several else {}
    loss = weiss.make_loss(name, num_classes, size, **arguments).to(fields.dtype)
    loss.load_state_dict({"fields": fields})
    return loss


def found(loss, embeddings, labels, factor=1.0):
    """Return the value, and the gradients of embeddings and fields of a factor times the loss."""
    x = embeddings.detach().clone().requires_grad_()
    value = loss(x, labels)
    gradients = torch.autograd.grad(value * factor, [x, *loss.parameters()])
    return [value.detach(), *gradients]


def found_alone(loss, embeddings, labels, wanted):
    """Return the same with one of the two gradients wanted, or ``"nothing"``; None for others."""
    x = embeddings.clone().requires_grad_(wanted == "embeddings")
    loss.fields.requires_grad_(wanted == "fields")
    value = loss(x, labels)
    if wanted != "nothing":
        value.backward()
    return [value.detach(), x.grad, loss.fields.grad]


def refusal(loss, embeddings, labels):
    """Return the words with which a batch is refused."""
    with pytest.raises(ValueError, match="must") as caught:
        loss(embeddings, labels)
    return str(caught.value)


def both(name, embeddings, labels, fields, factor=1.0, **arguments):
    """Return what the streaming kernel finds, and what the plain formula does."""
    return [
        found(with_fields(name, fields, impl=impl, **arguments), embeddings, labels, factor)
        for impl in ("streaming", "reference")
    ]


def same_bits(results, expected):
    """Return whether all tensors are equal to the last bit."""
    return all(a.equal(b) for a, b in zip(results, expected, strict=True))


def assert_equal_to(results, expected, relative=1e-10):
    """Hold each number to a share of the largest of its tensor."""
    names = ("value", "embeddings", "fields")
    for name, a, b in zip(names, results, expected, strict=True):
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        largest = b.abs().max().item()
        torch.testing.assert_close(
            a, b, rtol=relative, atol=relative * largest, msg=lambda text, n=name: f"{n}: {text}"
        )


def errors(results, truth):
    """Return how far each is from the truth, over its size; over 1 where it is only rounding."""
    far = []
    for result, true in zip(results, truth, strict=True):
        size = true.norm().item()
        gap = (result.double().cpu() - true.cpu()).norm().item()
        far.append(gap / (size if size > 1e-6 else 1.0))
    return far


def assert_within_budget(results, plain, truth, slack):
    """Let a kernel err as the plain formula does in the same precision, plus a slack."""
    names = ("value", "embeddings", "fields")
    pairs = zip(names, errors(results, truth), errors(plain, truth), strict=True)
    for name, error, allowed in pairs:
        assert error <= allowed + slack, f"{name}: {error:.3g}, the plain formula {allowed:.3g}"


class LargestTensor(TorchDispatchMode):
    """Remember the largest tensor any operation returns."""

    numel = nbytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
                self.nbytes = max(self.nbytes, tensor.nbytes)
        return result
