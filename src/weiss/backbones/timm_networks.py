"""Every network of timm by its name, as a trunk (timm is imported only here, when it is used).

timm needs torchvision, whose compiled part must fit the installed torch: both import errors have
messages of their own.
"""

import math
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from weiss._base import checks
from weiss.backbones.trunk import InputSpec, Trunk

ELSEWHERE = ("hf-hub:", "local-dir:")
"""How names begin that timm looks up in a repository or a folder, and not among its own."""
OPENED = re.compile(r"pretrained.*|checkpoint.*|file|cache_dir|url|hf_hub_.*")
"""Arguments by which timm opens files and addresses."""
WORD = re.compile(r"[\w.+-]*")
"""Text that is neither a path nor an address."""


class TimmNetwork(Trunk):
    """A network of timm without its classifier.

    Args:
        name: its name in timm, for example ``"vit_small_patch14_dinov2.lvd142m"``.
        pretrained: use timm's own weights, which are downloaded once.
        own_pooling: use the network's own pooling (a class token, an attention) and return
            vectors; otherwise return maps. Tokens become a map of one column, without class tokens.
        **arguments: further arguments of ``timm.create_model``, for example ``img_size=384``.

    Attributes:
        input: size, mean and std of timm's data configuration.
        classifiers: names of the classifier in the network's weights.
    """

    def __init__(
        self,
        name: str,
        pretrained: bool = False,
        own_pooling: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__()
        timm = _timm()
        known = timm.list_models() + timm.list_pretrained()
        if name not in known and not name.startswith(ELSEWHERE):
            raise ValueError(
                f"timm:NAME must be a network that timm has; got {name!r}."
                f"{checks.suggestion(name, known)} timm.list_models('*vit*') searches."
            )
        for fixed in {"num_classes", "global_pool", "in_chans", "features_only"} & set(arguments):
            raise ValueError(
                f"{fixed} must be left to the backbone for timm:{name}; got {arguments[fixed]!r}. "
                "Pass pooling=..., and images with 3 or 1 channels: grey is repeated."
            )
        if not own_pooling:
            arguments["global_pool"] = ""
        self.network = _built(timm, name, pretrained, arguments)
        self.architecture = f"timm:{name}"
        self.pooled = own_pooling
        self.num_features = int(
            getattr(self.network, "head_hidden_size", None) or self.network.num_features
        )
        self._prefix_tokens = int(getattr(self.network, "num_prefix_tokens", 0))
        # timm's configuration is that of the weights; the caller may set the size.
        size = {key: arguments[key] for key in ("img_size",) if key in arguments}
        config = timm.data.resolve_model_data_config(self.network, args=size)
        self.input = _spec(config, name)
        stated = self.network.pretrained_cfg.get("classifier") or ()
        self.classifiers: tuple[str, ...] = (stated,) if isinstance(stated, str) else tuple(stated)

    def forward(self, images: Tensor) -> Tensor:
        """Return vectors ``(B, F)`` of converted images, or maps ``(B, F, h, w)``."""
        out: Tensor = self.network(images)
        if self.pooled:
            return out
        if out.ndim == 3:
            return out[:, self._prefix_tokens :].transpose(1, 2).unsqueeze(3)
        # Windowed transformers keep channels last.
        return out if out.shape[1] == self.num_features else out.permute(0, 3, 1, 2)

    def parameters_by_stage(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of timm's coarse groups: of a ViT its blocks, of a CNN its stages.

        Empty for a network for which timm has no groups.
        """
        if not hasattr(self.network, "group_matcher"):
            return {}
        from timm.models import group_parameters

        matcher = self.network.group_matcher(coarse=True)
        numbers = group_parameters(self.network, matcher, reverse=True)
        found: dict[str, list[nn.Parameter]] = {
            f"stage{number}": [] for number in range(max(numbers.values(), default=-1) + 1)
        }
        for name, parameter in self.network.named_parameters():
            found[f"stage{numbers[name]}"].append(parameter)
        return found


def refuse_outside(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a network of timm that would be built from other files or from addresses.

    Raises:
        UntrustedError: by the name or an argument; nothing is imported, opened or asked before.
    """
    found = [f"name={name!r}"] if not WORD.fullmatch(name) else list(_outside(arguments))
    if found:
        raise checks.UntrustedError(
            "a network must be built from its own file alone if somebody else may have made it; "
            f"by its settings timm would open files or addresses: {checks.some(found)}"
        )


def _outside(arguments: Any, key: str = "") -> Iterator[str]:
    """Yield the arguments, at any depth, that may name files or addresses."""
    if isinstance(arguments, Mapping):
        for inner, value in arguments.items():
            if OPENED.fullmatch(str(inner)) and value is not False:
                yield f"{inner}={value!r}"
            else:
                yield from _outside(value, str(inner))
    elif isinstance(arguments, (list, tuple)):
        for value in arguments:
            yield from _outside(value, key)
    elif isinstance(arguments, str) and not WORD.fullmatch(arguments):
        yield f"{key}={arguments!r}"


def _timm() -> ModuleType:
    try:
        import timm
        import timm.data
    except ImportError as error:
        raise ImportError(
            f"timm must be installed for the backbones timm:NAME; importing it failed ({error}). "
            'Install it: pip install "weiss[timm]".'
        ) from error
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise ImportError(
            "torchvision must fit the installed torch for the backbones timm:NAME; its compiled "
            f"part did not load ({error}). Install both from the same place, for example from "
            "https://download.pytorch.org/whl/cpu."
        ) from error
    module: ModuleType = timm
    return module


def _built(timm: ModuleType, name: str, pretrained: bool, arguments: dict[str, Any]) -> Any:
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    except TypeError as error:
        raise TypeError(f"timm:{name} does not take these arguments: {error}.") from error
    except Exception as error:
        # The hub raises many kinds of errors.
        if not pretrained:
            raise
        raise RuntimeError(
            f"pretrained weights of timm:{name} could not be loaded: {error}. Without a network "
            "fetch the file elsewhere and pass weights=PATH; weights='scratch' starts from "
            "random ones."
        ) from error


def _spec(config: dict[str, Any], name: str) -> InputSpec:
    channels, height, width = config["input_size"]
    if height != width:
        raise ValueError(
            f"the input must be square; timm:{name} wants {height} x {width}. "
            "Choose another network."
        )
    # timm rounds down. All resizing here is bilinear, also where timm uses bicubic.
    resize = math.floor(width / config["crop_pct"])
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return InputSpec(channels=channels, size=width, resize=resize, mean=mean, std=std)
