"""A convolution, batch normalisation, a sum and a ReLU, computed as one layer on a GPU.

Frozen batch normalisation, by running statistics mu and v rather than the batch's, is an affine map
of each channel, and an affine map after a convolution is another convolution:

    norm(conv(x; W) + a) = conv(x; s W) + t,   s = g / sqrt(v + eps),   t = b + s (a - mu)

Parameters and results stay the same; the maps are read and written less often. That matters because
such networks are limited by memory: of the kernels of a training step of ResNet-50 on an H200
(batch 120, bfloat16; benchmarks/results) convolutions and products took 7.6 ms, and normalisation
and elementwise operations 26.0 ms.

Dimensions: B batch, K inputs and C outputs of a layer, h, w of its map.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules import module as modules

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of a module with hooks on its inputs, outputs or gradients."""


class Layers:
    """Computes the layers of a network, folded where the result is the same.

    A new one for each pass: parameters and modes change between passes.

    Args:
        pairs: every convolution of the network with the normalisation after it, to be folded if
            they can be, see `can_be_folded`; none of them folds nothing.
        autocast_for: the device type whose autocast decides about precision.
    """

    def __init__(
        self, pairs: Iterable[tuple[nn.Conv2d, nn.Module]] = (), autocast_for: str = "cpu"
    ) -> None:
        self._folded: dict[tuple[nn.Module, nn.Module], tuple[Tensor, Tensor]] = {}
        self._dtype = torch.float32
        listed = list(pairs)
        if not listed or not can_be_folded(listed):
            return
        self._dtype = listed[0][0].weight.dtype
        # As autocast, which does not change float64.
        if torch.is_autocast_enabled(autocast_for) and self._dtype != torch.float64:
            self._dtype = torch.get_autocast_dtype(autocast_for)
        # Not in float16: the gradient of a shift, a sum over all positions, would overflow.
        if self._dtype != torch.float16:
            self._folded = _scales_and_shifts(listed, self._dtype)

    def __call__(
        self,
        x: Tensor,
        conv: nn.Conv2d,
        norm: nn.Module,
        *,
        add: Tensor | None = None,
        relu: bool = True,
    ) -> Tensor:
        """Return ``relu(norm(conv(x)) + add)`` of x ``(B, K, H, W)`` and add ``(B, C, h, w)``."""
        if not self._folded:
            y: Tensor = norm(conv(x))
            y = y if add is None else y + add
            return functional.relu(y, inplace=True) if relu else y
        scale, shift = self._folded[conv, norm]
        x = x.to(self._dtype)
        options = (relu, conv.stride, conv.padding)
        if not torch.is_grad_enabled():
            return _convolved(x, _scaled(conv.weight, scale, x.dtype), shift, add, *options)
        given = (x, conv.weight, scale, shift, add)
        folded: Tensor = _Folded.apply(*given, *options)  # type: ignore[no-untyped-call]
        return folded

    def projected(self, x: Tensor, shortcut: nn.Sequential) -> Tensor:
        """Apply a module that is a convolution and a normalisation."""
        if not self._folded:
            plain: Tensor = shortcut(x)
            return plain
        conv, norm = pair_of(shortcut)
        return self(x, conv, norm, relu=False)


PLAIN = Layers()
"""Layers that are not folded."""


def pair_of(shortcut: nn.Sequential) -> tuple[Any, Any]:
    """Return the two layers of a shortcut; if it has more, itself twice, which is not folded."""
    is_plain = type(shortcut) is nn.Sequential and len(shortcut) == 2 and not are_hooked([shortcut])
    return (shortcut[0], shortcut[1]) if is_plain else (shortcut, shortcut)


def layers_of(pairs: Iterable[tuple[nn.Conv2d, nn.Module]], images: Tensor, wanted: bool) -> Layers:
    """Return how the layers of a network are computed for some images.

    Folded on a GPU only, where it is faster. A compiler or an exporter sees the plain layers, which
    it can optimise itself.
    """
    if not isinstance(images, Tensor) or torch._C._get_tracing_state() is not None:
        return PLAIN  # torch.fx, torch.jit
    if not (wanted and images.is_cuda) or torch.compiler.is_compiling():
        return PLAIN
    return Layers(pairs, images.device.type)


def can_be_folded(pairs: list[tuple[nn.Conv2d, nn.Module]]) -> bool:
    """Return whether every normalisation is frozen and nothing else happens in the layers."""
    epsilons = {getattr(norm, "eps", None) for _, norm in pairs}
    seen = (module for pair in pairs for module in pair)
    is_plain = all(_is_plain(conv, norm) for conv, norm in pairs)
    return len(epsilons) == 1 and is_plain and not are_hooked(seen)


def are_hooked(given: Iterable[nn.Module]) -> bool:
    """Return whether any of these modules has hooks, or there are global hooks."""
    if any(getattr(modules, f"_global{name}", None) for name in HOOKS):
        return True
    return any(getattr(module, name) for module in given for name in HOOKS)


def _is_plain(conv: nn.Module, norm: nn.Module) -> bool:
    """Return whether these are plain modules: no subclass, no batch statistics."""
    return (
        type(conv) is nn.Conv2d
        and type(norm) is nn.BatchNorm2d
        and not norm.training
        and norm.affine
        and norm.running_var is not None
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and conv.groups == 1
        and conv.dilation == (1, 1)
    )


def _scales_and_shifts(
    pairs: list[tuple[nn.Conv2d, nn.Module]], dtype: torch.dtype
) -> dict[tuple[nn.Module, nn.Module], tuple[Tensor, Tensor]]:
    """Return s ``(C,)`` and t ``(C,)`` of every layer, t in the precision of the layers.

    All layers at once: a hundred small kernels cost more than their work.
    """
    norms: list[Any] = [norm for _, norm in pairs]
    sizes = [norm.num_features for norm in norms]
    exact = torch.promote_types(norms[0].weight.dtype, torch.float32)
    with torch.autocast(norms[0].weight.device.type, enabled=False):
        weight, bias, mean, variance = (
            torch.cat([getattr(norm, name) for norm in norms]).to(exact)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight * torch.rsqrt(variance + norms[0].eps)
        if any(conv.bias is not None for conv, _ in pairs):
            own = [
                conv.weight.new_zeros(size) if conv.bias is None else conv.bias
                for (conv, _), size in zip(pairs, sizes, strict=True)
            ]
            mean = mean - torch.cat(own).to(exact)
        shift = torch.addcmul(bias, mean, scale, value=-1).to(dtype)
    found: dict[tuple[nn.Module, nn.Module], tuple[Tensor, Tensor]] = {}
    both = zip(torch.split(scale, sizes), torch.split(shift, sizes), strict=True)
    for (conv, norm), (s, t) in zip(pairs, both, strict=True):
        tensors = (norm.weight, norm.bias, conv.bias)
        trains = any(isinstance(one, Tensor) and one.requires_grad for one in tensors)
        # Where only later layers train, no gradient has to reach this one.
        found[conv, norm] = (s, t) if trains else (s.detach(), t.detach())
    return found


def _scaled(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return s W ``(C, K, k, k)`` in a precision, computed by one kernel."""
    folded = torch.empty_like(weight, dtype=dtype)
    return torch.mul(weight.detach(), scale.detach().view(-1, 1, 1, 1), out=folded)


def _convolved(
    x: Tensor,
    folded: Tensor,
    shift: Tensor,
    add: Tensor | None,
    relu: bool,
    stride: tuple[int, ...],
    padding: Any,
) -> Tensor:
    """Return ``relu(conv(x; folded) + shift + add)``, without a graph of gradients."""
    if relu and _has_one_kernel(x):
        rest = (stride, padding, (1, 1), 1)
        if add is None:
            return torch.cudnn_convolution_relu(x, folded, shift, *rest)
        return torch.cudnn_convolution_add_relu(x, folded, add, 1.0, shift, *rest)
    y = functional.conv2d(x, folded, shift, stride, padding)
    y = y if add is None else y.add_(add)
    return y.relu_() if relu else y


class _Folded(torch.autograd.Function):
    """``relu(conv(x; s W) + t + z)`` with its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        add: Tensor | None,
        relu: bool,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """Return ``(B, C, h, w)`` of x ``(B, K, H, W)``, W ``(C, K, k, k)``, s and t ``(C,)``."""
        folded = _scaled(weight, scale, x.dtype)
        y = _convolved(x, folded, shift, add, relu, stride, padding)
        ctx.relu, ctx.stride, ctx.padding = relu, stride, padding
        ctx.save_for_backward(x, weight, scale, folded, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W, s, t and z."""
        x, weight, scale, folded, y = ctx.saved_tensors
        wants_x, wants_weight, wants_scale, wants_shift, wants_add = ctx.needs_input_grad[:5]
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        kind = (ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1)
        wanted = (wants_x, wants_weight or wants_scale, False)
        for_x, for_folded, _ = torch.ops.aten.convolution_backward(
            grad, x, folded, None, *kind, wanted
        )
        for_weight = for_folded * scale.view(-1, 1, 1, 1) if wants_weight else None
        for_scale = (for_folded * weight).sum(dim=(1, 2, 3)) if wants_scale else None
        for_shift = _sum_over_maps(grad) if wants_shift else None
        for_add = grad if wants_add else None
        return for_x, for_weight, for_scale, for_shift, for_add, None, None, None


def _has_one_kernel(x: Tensor) -> bool:
    """Return whether cuDNN has one kernel from the convolution to the ReLU, and may use it.

    torch ignores its settings for determinism there.
    """
    settings = torch.backends.cudnn
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and torch.version.hip is None
        and settings.enabled
        and settings.is_available()  # type: ignore[no-untyped-call]
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
        and not settings.deterministic
        and not torch.are_deterministic_algorithms_enabled()
    )


def _sum_over_maps(grad: Tensor) -> Tensor:
    """Return the sum ``(C,)`` of ``(B, C, h, w)`` over all but the channels."""
    if not (grad.is_cuda and grad.dtype == torch.bfloat16):
        return grad.sum(dim=(0, 2, 3))
    # A product with ones: faster than torch's sum over rows.
    rows = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])
    return (rows.new_ones(1, len(rows)) @ rows).squeeze(0)
