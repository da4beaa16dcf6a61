"""What the Tab key offers: recipes, data sets, losses and backbones.

A shell asks at every press of the key, so the names are here: those in the packages come with
torch, which takes seconds to load. A test compares them.
"""

from collections.abc import Iterable
from pathlib import Path

LOSSES = (
    *("contrastive", "mf_contrastive", "cwms", "mf_cwms", "binomial", "mf_binomial"),
    *("rest_ms", "mf_rest_ms"),
    *("contrastive_pml", "ms", "ms_miner", "arcface", "cosface", "proxy_nca", "proxy_anchor"),
    *("norm_softmax", "triplet", "soft_triple", "subcenter_arcface", "center", "potential_field"),
)
BACKBONES = (
    *("bn_inception", "resnet18", "resnet34", "resnet50", "resnet101"),
    *("resnet18_v1", "resnet34_v1", "resnet50_v1", "resnet101_v1", "small", "features"),
)
DATASETS = (
    "glyphs",
    "glyphs_still",
    "glyphs_many",
    "cub",
    "cars",
    "sop",
    "inshop",
    "inshop_joined",
)


def recipes(incomplete: str) -> list[str]:
    """Return the recipes and data sets that begin like this; the shell adds files and folders."""
    shipped = Path(__file__).parents[1] / "runs" / "recipes"
    return _beginning(
        incomplete, [*sorted(path.stem for path in shipped.glob("*.toml")), *DATASETS]
    )


def losses(incomplete: str) -> list[str]:
    """Return the losses that begin like this."""
    return _beginning(incomplete, LOSSES)


def several_losses(incomplete: str) -> list[str]:
    """Return what the last of several losses, with commas between, may become."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, LOSSES)]


def backbones(incomplete: str) -> list[str]:
    """Return the backbones that begin like this."""
    return _beginning(incomplete, BACKBONES)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
