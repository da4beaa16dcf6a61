"""Adapters of low rank beside the layers of a frozen network (peft is imported only here).

    Hu et al.: LoRA: Low-rank adaptation of large language models (2022).

A layer with the matrix W computes ``W x + (alpha / rank) B A x``; A and B train, W does not. B
starts at zero, so that the network starts as it was. ``W + (alpha / rank) B A`` is a matrix of the
same shape: what is kept of a trained network has no adapters (`merged_state`).
"""

import re
from typing import Any

from torch import Tensor, nn

from weiss._base import checks
from weiss.backbones.trunk import Trunk

ADAPTER = "default"
"""The name that peft gives to the only set of adapters."""
BASE = "base_layer."
"""In the name of a tensor of a layer that has an adapter."""


def add_adapters(trunk: Trunk, rank: int, alpha: float) -> None:
    """Add an adapter to every linear layer; of a network without one, to every convolution.

    Convolutions in groups get none.
    """
    checks.count("lora_rank", rank, "LoRA")
    alpha = checks.number("lora_alpha", alpha, "LoRA", above=0.0)
    names = _layers(trunk)
    if not names:
        raise ValueError(
            f"train must not be 'lora' for {type(trunk).__name__}, which has neither linear layers "
            "nor convolutions."
        )
    peft = _peft()
    # As a pattern: a name in a list would also stand for every name that ends with it.
    targets = "|".join(map(re.escape, names))
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets, bias="none"
    )
    peft.inject_adapter_in_model(config, trunk)
    trunk.folds = False  # folding knows plain convolutions only


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the tensors of a network as it is without adapters, added to its weights."""
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "base_layer")}
    found = {}
    for name, value in model.state_dict().items():
        owner, is_base, rest = name.partition(BASE)
        layer = layers.get(owner.removesuffix("."))
        if layer is not None and is_base:
            changed = value + layer.get_delta_weight(ADAPTER) if rest == "weight" else value
            found[f"{owner}{rest}"] = changed.detach().to(value.dtype).clone()
        elif not any(name.startswith(f"{owner}.lora_") for owner in layers):
            found[name] = value.clone()
    return found


def _layers(trunk: nn.Module) -> list[str]:
    named = list(trunk.named_modules())
    linear = [name for name, layer in named if type(layer) is nn.Linear]
    plain = [name for name, layer in named if type(layer) is nn.Conv2d and layer.groups == 1]
    return linear or plain


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError(
            f"peft must be installed for backbone.train='lora'; importing it failed ({error}). "
            "Install it: pip install 'weiss[lora]'"
        ) from error
    return peft
