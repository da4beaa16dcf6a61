"""Which part of a trunk trains: all of it, none, its last stages, or adapters beside it.

The head always trains, and the exponent of ``"gem"`` pooling unless all of the trunk is frozen.
What does not train is frozen for good (`Embedder.freeze`), unlike in a warm-up, which ends.
"""

import re

from torch import nn

from weiss.backbones.embedder import Embedder
from weiss.backbones.lora import add_adapters

ALL, FROZEN, LORA = "all", "frozen", "lora"
PARTS = re.compile(r"all|frozen|lora|last:[1-9]\d{0,3}")
"""How a part is named."""
NAMED = "'all', 'frozen', 'last:N' (the last N stages, N from 1) or 'lora'"


def train_only(model: Embedder, part: str, *, rank: int = 8, alpha: float = 16.0) -> None:
    """Let only a part of a network train, beside its head.

    Args:
        model: the network, with the weights it starts from.
        part: ``"all"``; ``"frozen"``, nothing of the trunk; ``"last:N"``, the last N stages of the
            trunk; or ``"lora"``, adapters of low rank beside its layers (needs ``peft``).
        rank: of the adapters.
        alpha: their weight is alpha / rank.

    Raises:
        ValueError: the trunk has no such part.
        ImportError: peft is not installed.
    """
    if not isinstance(part, str) or not PARTS.fullmatch(part):
        raise ValueError(f"train must be {NAMED}; got {part!r}.")
    if part == ALL:
        return
    trunk, count = model.trunk, 0
    if part.startswith("last:"):
        count = int(part.removeprefix("last:"))
        _refuse_too_many(model, count)
    stages = list(trunk.parameters_by_stage().values())
    trained = {p for stage in stages[len(stages) - count :] for p in stage}
    model.freeze([p for p in trunk.parameters() if p not in trained])
    if part == FROZEN:
        model.freeze(model.pooling.parameters())  # so that pooled features never change
    if part == LORA:
        add_adapters(trunk, rank, alpha)
        model.train(model.training)


def stages_after(model: Embedder) -> dict[nn.Parameter, int]:
    """Return how many stages come after the stage of each parameter of the trunk.

    Raises:
        ValueError: the trunk has no stages.
    """
    stages = list(model.trunk.parameters_by_stage().values())
    if not stages:
        raise ValueError(
            f"optim.layer_decay must be 1 for {_name(model)}, which has no stages. Leave it out."
        )
    return {p: after for after, stage in enumerate(reversed(stages)) for p in stage}


def _refuse_too_many(model: Embedder, count: int) -> None:
    names = list(model.trunk.parameters_by_stage())
    if not names:
        raise ValueError(
            f"train must be 'all', 'frozen' or 'lora' for {_name(model)}, which has no stages; got "
            f"'last:{count}'."
        )
    if count > len(names):
        raise ValueError(
            f"train must be 'last:N' with N of at most {len(names)} for {_name(model)}, whose "
            f"stages are {', '.join(names)}; got 'last:{count}'. For all of them: 'all'."
        )


def _name(model: Embedder) -> str:
    return model.architecture or type(model.trunk).__name__
