"""Networks that embed images: by name, with pretrained weights."""

from weiss.backbones.bn_inception import BNInception
from weiss.backbones.by_name import BACKBONES, BackboneEntry, make_backbone
from weiss.backbones.embedder import Embedder
from weiss.backbones.pooling import POOLINGS, GeneralisedMeanPooling
from weiss.backbones.resnet import ResNet
from weiss.backbones.small import SmallNetwork
from weiss.backbones.timm_networks import TimmNetwork
from weiss.backbones.trunk import InputSpec, Trunk
from weiss.backbones.weights import load_weights, read_weights

__all__ = [
    "BACKBONES",
    "POOLINGS",
    "BNInception",
    "BackboneEntry",
    "Embedder",
    "GeneralisedMeanPooling",
    "InputSpec",
    "ResNet",
    "SmallNetwork",
    "TimmNetwork",
    "Trunk",
    "load_weights",
    "make_backbone",
    "read_weights",
]
