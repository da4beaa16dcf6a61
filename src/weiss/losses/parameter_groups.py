"""Parameter groups: every kind of parameter at the learning rate it needs.

Class vectors see a gradient only through the few samples of their class and, under cosine, only
along the sphere. At the network's rate they hardly move, and the network then learns to follow
vectors that do not learn. The paper trains mean fields at 2000 times the network's rate and proxies
at 100 times, with AdamW and a network rate of 1e-4.
"""

from typing import Any

from torch import nn

from weiss._base import checks

FIELD_LR_SCALE = 2000.0
PROXY_LR_SCALE = 100.0


def parameter_groups(
    model: nn.Module,
    loss: nn.Module,
    lr: float,
    weight_decay: float = 1e-4,
    *,
    class_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Return the groups to build an optimiser from: the network, and the loss's class vectors.

    Mean fields get ``2000 * lr``, proxies (the class vectors of pytorch-metric-learning's losses)
    ``100 * lr``, any other parameter of a loss ``lr``. Those that do not require a gradient are
    left out. One that model and loss share, or two modules of the loss, is in one group.

    The scales are the paper's, for AdamW at an ``lr`` around 1e-4, where a step is about as long as
    the rate whatever the gradient. With SGD, or a much larger ``lr``, set ``class_lr``.

    Args:
        model: the network.
        loss: a loss of Weiss or of pytorch-metric-learning, alone or inside others.
        lr: learning rate of the network.
        weight_decay: weight decay of every group.
        class_lr: learning rate of the class vectors, where it is searched rather than scaled.

    Returns:
        Groups with the keys ``name`` ("network", "fields", "proxies", "loss"), ``params``, ``lr``
        and ``weight_decay``; a group without parameters is left out.

    Example:
        >>> import torch
        >>> from weiss import MeanFieldContrastiveLoss, parameter_groups
        >>> loss = MeanFieldContrastiveLoss(num_classes=10, embedding_size=4)
        >>> groups = parameter_groups(torch.nn.Linear(8, 4), loss, lr=1e-4)
        >>> [(group["name"], group["lr"]) for group in groups]
        [('network', 0.0001), ('fields', 0.2)]
        >>> optimizer = torch.optim.AdamW(groups)
    """
    owner = "parameter_groups"
    for name, given in (("model", model), ("loss", loss)):
        if not isinstance(given, nn.Module):
            raise TypeError(
                f"{name} must be a torch.nn.Module for {owner}; got {type(given).__name__}."
            )
    if hasattr(model, "class_lr_scale"):
        raise ValueError(
            f"model must be the network for {owner}; got the loss {type(model).__name__}. "
            "The order is parameter_groups(model, loss, lr)."
        )
    lr = checks.number("lr", lr, owner, above=0.0)
    weight_decay = checks.not_negative("weight_decay", weight_decay, owner)
    if class_lr is not None:
        class_lr = checks.number("class_lr", class_lr, owner, above=0.0)

    kinds: dict[int, tuple[str, float]] = {}
    # The module that owns a parameter decides, so that losses can be nested in others.
    for module in loss.modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            name, scale = _kind(module, parameter_name)
            rate = class_lr if class_lr is not None and name != "loss" else lr * scale
            if name != "loss" or id(parameter) not in kinds:
                kinds[id(parameter)] = name, rate
    network = [p for p in model.parameters() if id(p) not in kinds]

    groups: dict[tuple[str, float], dict[str, Any]] = {}
    for parameter in [*network, *loss.parameters()]:
        if parameter.requires_grad:
            name, rate = kinds.get(id(parameter), ("network", lr))
            group = {"name": name, "params": [], "lr": rate, "weight_decay": weight_decay}
            groups.setdefault((name, rate), group)["params"].append(parameter)
    if not groups:
        raise ValueError(
            f"model or loss must have a parameter that requires a gradient for {owner}; "
            "got none. Unfreeze a part of the network."
        )
    return list(groups.values())


def _kind(module: nn.Module, parameter_name: str) -> tuple[str, float]:
    """Return the group a loss's parameter belongs to, and its rate over the network's."""
    scale = getattr(module, "class_lr_scale", None)
    if scale is not None:
        return "fields" if parameter_name == "fields" else "proxies", float(scale)
    if type(module).__module__.startswith("pytorch_metric_learning."):
        return "proxies", PROXY_LR_SCALE
    return "loss", 1.0
