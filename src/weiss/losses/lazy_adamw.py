"""AdamW for very many class vectors: only those with a gradient move.

Under a loss with a hinge a batch says nothing about most of a million classes: their rows of the
gradient are exactly zero. AdamW reads and writes the parameter and both moments of all of them in
every step all the same. `TouchedRowsAdamW` reads the gradient and touches nothing else of a row
without one. To such a row

- time stands still: its moments do not fade, and bias correction counts the steps that touched it;
- weight decay is owed: the logarithm of the decay of all steps is added up in one number, a row
  remembers how much of it was paid, and pays the rest when it is next touched.

A row that every step touches follows `torch.optim.AdamW` but for rounding.

Dimensions: C classes (rows), D embedding size, R rows that a step touches.
"""

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from weiss._base import checks

ELEMENTS = 2**19
"""Entries of the rows that are looked at, or updated, at a time: they stay in a CPU's cache."""
EXACT = ("touches", "decayed", "decay")
"""State that keeps its own dtype, whatever that of the parameter is."""


class TouchedRowsAdamW(torch.optim.Optimizer):
    """AdamW in which a row without a gradient is left alone; its weight decay is made up for later.

    A row ``(D,)`` has no gradient if every entry is exactly zero; NaN counts as a gradient. What a
    row owes in weight decay is what each missed step would have taken at its own learning rate.
    Until it is touched again it is too long by that factor, which cosine distance does not see;
    where length matters, call `settle` before vectors are saved or measured.

    A parameter without any gradient (None) takes no part in a step, as in AdamW. A group with
    ``touched_rows=False`` is plain AdamW, of parameters of any shape: one optimiser for a network
    and its class vectors. A shard of a larger parameter is a parameter with fewer rows.

    On a CUDA device one kernel does a step of a parameter, without any transfer to the host, where
    Triton is installed; else, and on a CPU, the same is done in blocks of rows. For a CUDA graph
    take one step first, and where the rate changes between replays make ``lr`` a tensor there.

    Args:
        params: parameters ``(C, D)``, or groups of them.
        lr: learning rate.
        betas: how much of the two moments stays from one touch of a row to the next.
        eps: added to the denominator.
        weight_decay: decoupled, as in AdamW; ``lr * weight_decay`` must stay below 1.

    Example:
        >>> import torch
        >>> from weiss.losses.lazy_adamw import TouchedRowsAdamW
        >>> fields = torch.nn.Parameter(torch.ones(3, 2))
        >>> optimizer = TouchedRowsAdamW([fields], lr=0.1, weight_decay=0.5)
        >>> fields[1].sum().backward()
        >>> optimizer.step()
        >>> fields.detach()[:, 0].tolist() == [1.0, fields[1, 0].item(), 1.0]
        True
        >>> optimizer.settle()
        >>> round(fields[0, 0].item(), 6)
        0.95
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "touched_rows": True})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in any optimiser; ``touched_rows=False`` makes it plain AdamW."""
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        _refuse_group(group, type(self).__name__)
        # One kernel for a whole group, and steps counted where it can see them.
        group["fused"] = not group["touched_rows"] and all(p.is_cuda for p in group["params"])
        self.param_groups.append(group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with the gradients there are.

        Args:
            closure: computes them again and returns the loss.

        Returns:
            The loss, if there is a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                parameters = [p for p in group["params"] if p.grad is not None]
                if not group["touched_rows"]:
                    self._step_whole(parameters, group)
                    continue
                for parameter in parameters:
                    self._step_rows(parameter, group)
        return loss

    @torch.no_grad()
    def settle(self) -> None:
        """Take the weight decay that rows still owe, so that every row has its true length."""
        for group in self.param_groups:
            for parameter in group["params"] if group["touched_rows"] else ():
                state = self.state[parameter]
                if not state:
                    continue
                owed_C1 = (state["decay"] - state["decayed"]).exp_()[:, None]
                for rows in _blocks(parameter):
                    parameter[rows] *= owed_C1[rows].to(_working_dtype(parameter))
                state["decayed"].copy_(state["decay"].expand(len(parameter)))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state, as in any optimiser; one of this kind."""
        for group in state_dict["param_groups"]:
            if "touched_rows" not in group:
                raise ValueError(
                    f"the state must be of a {type(self).__name__}; it is of another optimiser, "
                    "which does not know when each row was touched. Begin with a fresh state."
                )
        super().load_state_dict(state_dict)
        # What torch brought to the parameter's dtype has lost digits: taken from the source again.
        parameters = [p for group in self.param_groups for p in group["params"]]
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            given = state_dict["state"].get(index, {})
            for key in EXACT:
                if key in given:
                    self.state[parameter][key] = given[key].to(parameter.device)

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise TypeError(
                f"gradients must be dense for {type(self).__name__}; got {gradient.layout}. Use "
                "sparse=False: rows without a gradient are found by themselves."
            )
        state, rate = self.state[parameter], group["lr"]
        if not state:
            rows, device = len(parameter), parameter.device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["touches"] = torch.zeros(rows, dtype=torch.int32, device=device)
            # Near a large sum the decay of a few steps is lost in float32.
            state["decayed"] = torch.zeros(rows, dtype=torch.float64, device=device)
            state["decay"] = torch.zeros((), dtype=torch.float64, device=device)
        state["decay"].add_(_log_of_decay(rate, group["weight_decay"], type(self).__name__))
        if parameter.numel() == 0:
            return
        update = _update_in_one_pass if _has_kernel(parameter, state) else update_in_blocks
        update(parameter, gradient, state, rate, group["betas"], group["eps"])

    def _step_whole(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                place = parameter.device if group["fused"] else None
                state["step"] = torch.zeros((), dtype=torch.float32, device=place)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def update_in_blocks(
    parameter_CD: Tensor,
    gradient_CD: Tensor,
    state: dict[str, Tensor],
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update the rows that have a gradient, a few at a time; on any device.

    Args:
        parameter_CD: ``(C, D)``, changed in place.
        gradient_CD: ``(C, D)``.
        state: of this parameter, changed in place but for ``decay``, which has this step in it.
        lr: learning rate.
        betas: of the moments.
        eps: added to the denominator.
    """
    dtype = _working_dtype(parameter_CD)
    mean_CD, square_CD = state["exp_avg"], state["exp_avg_sq"]
    all_rows = _touched(gradient_CD)
    width = _rows_at_a_time(parameter_CD)
    for low in range(0, len(all_rows), width):
        rows_R = all_rows[low : low + width]
        touches_R = state["touches"][rows_R] + 1
        state["touches"][rows_R] = touches_R
        factor_R = (state["decay"] - state["decayed"][rows_R]).exp_()
        state["decayed"][rows_R] = state["decay"]
        bias1_R, bias2_R = (1 - beta ** touches_R.double() for beta in betas)
        gradient_RD = gradient_CD[rows_R].to(dtype)
        mean_RD = mean_CD[rows_R].to(dtype).lerp_(gradient_RD, 1 - betas[0])
        square_RD = square_CD[rows_R].to(dtype).mul_(betas[1])
        square_RD.addcmul_(gradient_RD, gradient_RD, value=1 - betas[1])
        mean_CD[rows_R] = mean_RD.to(mean_CD.dtype)
        square_CD[rows_R] = square_RD.to(square_CD.dtype)
        step_R = -lr / bias1_R
        root_RD = square_RD.sqrt_().div_(bias2_R.sqrt_()[:, None].to(dtype)).add_(eps)
        change_RD = mean_RD.div_(root_RD).mul_(step_R[:, None].to(dtype))
        moved_RD = parameter_CD[rows_R].to(dtype).mul_(factor_R[:, None].to(dtype)).add_(change_RD)
        parameter_CD[rows_R] = moved_RD.to(parameter_CD.dtype)


def _update_in_one_pass(
    parameter_CD: Tensor,
    gradient_CD: Tensor,
    state: dict[str, Tensor],
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    from weiss.kernels.lazy_adamw import update_rows

    update_rows(parameter_CD, gradient_CD, **state, lr=lr, betas=betas, eps=eps)


def _has_kernel(parameter: Tensor, state: dict[str, Tensor]) -> bool:
    """Say whether the kernel can do a parameter: on a GPU that Triton knows, rows side by side."""
    if not parameter.is_cuda or not _runs_triton(parameter.get_device()):
        return False
    return all(t.is_contiguous() for t in (parameter, state["exp_avg"], state["exp_avg_sq"]))


@functools.cache
def _runs_triton(device: int) -> bool:
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and torch.cuda.get_device_capability(device) >= (7, 0)


def _touched(gradient_CD: Tensor) -> Tensor:
    """Return the indices ``(R,)`` of the rows that have a gradient, in order."""
    touched_C = torch.empty(len(gradient_CD), dtype=torch.bool, device=gradient_CD.device)
    for rows in _blocks(gradient_CD):
        # The extremes instead of every comparison: NaN is both of them, and -0.0 equals zero.
        part_rD = gradient_CD[rows]
        touched_C[rows] = part_rD.amax(dim=1).ne(0) | part_rD.amin(dim=1).ne(0)
    return touched_C.nonzero().squeeze(1)


def _rows_at_a_time(tensor_CD: Tensor) -> int:
    return max(ELEMENTS // tensor_CD.shape[1], 1)


def _blocks(tensor_CD: Tensor) -> Iterator[slice]:
    if tensor_CD.numel() == 0:
        return
    width = _rows_at_a_time(tensor_CD)
    for low in range(0, len(tensor_CD), width):
        yield slice(low, low + width)


def _working_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _log_of_decay(lr: float | Tensor, weight_decay: float, owner: str) -> float | Tensor:
    """Return the logarithm of what a step multiplies weights by, ``log(1 - lr weight_decay)``."""
    if isinstance(lr, Tensor):
        # Looking at it would make a GPU wait; a product of 1 or more ends in NaN, not unseen.
        return torch.log1p(-lr.double() * weight_decay)
    if not lr * weight_decay < 1:
        raise ValueError(
            f"lr * weight_decay must be below 1 for {owner}, or a step turns weights around; got "
            f"lr={lr:g} and weight_decay={weight_decay:g}. Lower one of them."
        )
    return math.log1p(-lr * weight_decay)


def _refuse_group(group: dict[str, Any], owner: str) -> None:
    checks.flag("touched_rows", group["touched_rows"], owner)
    if not isinstance(group["lr"], Tensor):
        checks.not_negative("lr", group["lr"], owner)
    checks.not_negative("weight_decay", group["weight_decay"], owner)
    checks.not_negative("eps", group["eps"], owner)
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(
            f"betas must be two numbers of at least 0 and below 1 for {owner}; got {betas!r}. Pass "
            "(0.9, 0.999), say."
        )
    if not group["touched_rows"]:
        return
    _log_of_decay(group["lr"], group["weight_decay"], owner)
    for parameter in group["params"]:
        if parameter.ndim != 2:
            raise ValueError(
                f"parameters must have shape (rows, columns) for {owner}; got "
                f"{tuple(parameter.shape)}. Put others into a group with touched_rows=False."
            )
        if parameter.layout != torch.strided or not parameter.is_floating_point():
            given = parameter.layout if parameter.is_floating_point() else parameter.dtype
            raise TypeError(
                f"parameters must be dense and floating point for {owner}; got {given}. Convert "
                "them, or use another optimiser for them."
            )
