"""The sections of a recipe: their keys, the kinds of values, defaults, and what is refused."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from weiss._base import checks
from weiss.backbones.by_name import BACKBONES, SCRATCH, TIMM
from weiss.backbones.embedder import EMBEDDING_SIZE, FREEZING, HEADS, LINEAR, NO_HEAD
from weiss.backbones.pooling import POOLINGS
from weiss.backbones.trained_part import ALL, NAMED, PARTS
from weiss.data.cache import STORAGES
from weiss.data.crops import RandomCrop
from weiss.data.own_data import HOW_TO_SPLIT, Assembly
from weiss.evaluation.metrics import TITLES
from weiss.losses.by_name import BASELINES, LOSSES, make_loss

BOUND = "must be at most"


def refusal(message: str) -> PydanticCustomError:
    """Return an error with our own message instead of pydantic's."""
    return PydanticCustomError("law", "{message}", {"message": message})


def is_a(law: str) -> WrapValidator:
    """Replace any error of pydantic by what the value must be."""

    def check(given: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(given)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "less_than_equal":
                raise refusal(f"{BOUND} {first['ctx']['le']:,}; got {given!r}.") from None
            if first["msg"].startswith(BOUND):
                raise refusal(first["msg"]) from None
            raise refusal(f"must be {law}; got {given!r}.") from None

    return WrapValidator(check)


def among(options: Iterable[str], *, or_none: bool = False) -> BeforeValidator:
    """Accept some words, and list them in the error."""
    known = list(options)

    def check(given: Any) -> Any:
        if (isinstance(given, str) and given in known) or (or_none and given is None):
            return given
        hint = checks.suggestion(given, known) if isinstance(given, str) else ""
        listed = ", ".join(map(repr, known))
        raise refusal(f"must be one of {listed}; got {given!r}.{hint}")

    return BeforeValidator(check)


AS_TUPLE = BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
WORD_OR_LIST = BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
# Beyond these bounds torch and NumPy overflow: whole numbers of 64 bits, float32.
LARGEST, LARGEST_FLOAT = 2**63 - 1, 1e30
Count = Annotated[int, Field(ge=1, le=LARGEST), is_a("a whole number of at least 1")]
Index = Annotated[int, Field(ge=0, le=LARGEST), is_a("a whole number of at least 0")]
MaybeCount = Annotated[Count | None, is_a("a whole number of at least 1, or left out")]
Positive = Annotated[float, Field(gt=0, le=LARGEST_FLOAT), is_a("a number greater than 0")]
MaybePositive = Annotated[Positive | None, is_a("a number greater than 0, or left out")]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_FLOAT), is_a("a number of at least 0")]
Share = Annotated[float, Field(ge=0, lt=1), is_a("a number of at least 0 and below 1")]
Flag = Annotated[bool, is_a("true or false")]
Text = Annotated[str, Field(min_length=1), is_a("text in quotes, and not empty")]
MaybeText = Annotated[Text | None, is_a("text in quotes, and not empty, or left out")]
Range = Annotated[tuple[float, float], AS_TUPLE, is_a("two numbers, [least, greatest]")]
Counts = Annotated[tuple[Count, ...], AS_TUPLE, is_a("a list of whole numbers of at least 1")]
BatchSize = Annotated[
    Count | Literal["auto"], is_a("a whole number of at least 1, or 'auto' in quotes")
]
DEVICES = r"^(auto|cpu|mps|cuda(:\d+)?)$"


class Section(BaseModel):
    """A part of a recipe: no unknown keys, no conversion of values, no later change."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def entry(default: Any, meaning: str, **more: Any) -> Any:
    """Declare a key of a section: its default, and what it means."""
    return Field(default, description=meaning, **more)


def plain(value: Any) -> Any:
    """Return a value without tuples and without what is None."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


class Data(Section):
    """Which images, how they are split, where they are kept."""

    name: Text = entry("glyphs", "a name of DATASETS, a folder, or a .csv, .tsv, .parquet list")
    root: MaybeText = entry(None, "folder of a named set, or what a list's paths start from")
    split: Annotated[str, among(HOW_TO_SPLIT)] = entry("auto", "how to split; see Assembly")
    held_out: Annotated[float, Field(gt=0, lt=1), is_a("a number between 0 and 1")] = entry(
        0.2, "share of the classes, or of each class, to test on"
    )
    split_seed: Index = entry(0, "random choice of what is held out")
    shared_classes: Flag = entry(False, "accept given splits whose train and test share classes")
    min_images: Count = entry(2, "a class with fewer images is refused")
    skip_bad: Flag = entry(False, "skip what would be refused, with a warning")
    nested: Flag = entry(False, "in a folder, every folder that holds images is a class")
    allow_missing: Flag = entry(False, "accept a named set of which images are missing")
    side: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto", "original"],
        is_a("a whole number of at least 1, auto or original"),
    ] = entry(
        "auto",
        "images are kept with their shorter side reduced to this before crops are cut; auto: what "
        "evaluation needs and at least 256; original: as they are",
    )
    scaled_decoding: Flag = entry(
        False,
        "decode JPEG files at 1/2, 1/4 or 1/8 of their size where that is at least what they are "
        "reduced to: faster for large photos, with slightly different pixels",
    )
    keep: Annotated[str, among(("auto", *STORAGES))] = entry(
        "auto", "where decoded images are kept"
    )
    num_workers: Annotated[Index | None, is_a("a whole number of at least 0, or left out")] = entry(
        None, "decoding processes; left out: one for each core"
    )
    cache: MaybeText = entry(None, "folder for decoded images and downloads; left out: the user's")

    @model_validator(mode="after")
    def _scaled_decoding_reduces(self) -> "Data":
        if self.scaled_decoding and self.side == "original":
            raise ValueError(
                "scaled_decoding must be false for data.side='original', which keeps images at "
                "their own size; got true. Set data.side to a number of pixels or to 'auto', or "
                "data.scaled_decoding to false."
            )
        return self

    @property
    def how(self) -> Assembly:
        """How `weiss.data.open_table` makes a table of data that have no name."""
        keys = ("split", "held_out", "shared_classes", "min_images", "skip_bad", "nested")
        return Assembly(seed=self.split_seed, **{key: getattr(self, key) for key in keys})


class _WithArguments(Section):
    """A section whose further keys are arguments of what it names."""

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys that are not the recipe's own, as a fresh dict."""
        return dict(self.model_extra or {})


class Backbone(_WithArguments):
    """The network. Every further key is an argument of it: ``widths`` for ``"small"``."""

    name: Text = entry("small", "a name of BACKBONES, or timm:NAME")
    weights: MaybeText = entry(None, "where it starts: a file, an address, imagenet, scratch")
    embedding_size: MaybeCount = entry(
        None, f"D; left out: {EMBEDDING_SIZE}, or the network's features without a head"
    )
    dimensions: Annotated[Counts | None, is_a("a list of whole numbers of at least 1")] = entry(
        None, "Matryoshka: sizes of prefixes that train too, the whole embedding first"
    )
    pooling: Annotated[str | None, among((*POOLINGS, "own"), or_none=True)] = entry(
        None, "from maps to a vector; left out: the network's own, or avg without a head"
    )
    head: Annotated[str, among(HEADS)] = entry(
        LINEAR, "from features to the embedding; none: the features are the embedding"
    )
    freeze_bn: Annotated[str, among(FREEZING)] = entry("none", "what of batch norm does not change")
    train: Annotated[str, Field(pattern=f"^(?:{PARTS.pattern})$"), is_a(NAMED)] = entry(
        ALL, "the part of the trunk that trains; all, frozen, last:N (stages) or lora"
    )
    lora_rank: Count = entry(8, "lora: rank of the adapters")
    lora_alpha: Positive = entry(16.0, "lora: adapters are multiplied by alpha / rank")

    @property
    def is_pretrained(self) -> bool:
        """Whether the network starts from weights, and not from random numbers."""
        return self.weights not in (None, SCRATCH)

    @model_validator(mode="before")
    @classmethod
    def _a_head_makes_the_usual_size(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("head") != NO_HEAD:
            sizes = given.get("dimensions")
            first = sizes[0] if isinstance(sizes, (list, tuple)) and sizes else EMBEDDING_SIZE
            return {"embedding_size": first, **plain(given)}
        return given

    @model_validator(mode="after")
    def _dimensions_are_prefixes(self) -> "Backbone":
        if self.dimensions is None:
            return self
        given, size = list(self.dimensions), self.embedding_size
        if self.head == NO_HEAD:
            raise ValueError(
                "dimensions must be left out for backbone.head='none', which has no layer that "
                f"could be cut; got {given}."
            )
        if given[:1] != [size] or any(a <= b for a, b in itertools.pairwise(given)):
            raise ValueError(
                f"dimensions must begin with backbone.embedding_size, {size}, and descend from "
                f"there; got {given}."
            )
        return self

    @model_validator(mode="after")
    def _arguments_belong_to_the_network(self) -> "Backbone":
        if self.name.startswith(TIMM):
            return self
        if self.name not in BACKBONES:
            raise ValueError(
                f"name must be one of {', '.join(map(repr, BACKBONES))}, or 'timm:NAME'; got "
                f"{self.name!r}.{checks.suggestion(self.name, BACKBONES)}"
            )
        if self.pooling == "own":
            listed = ", ".join(map(repr, POOLINGS))
            raise ValueError(f"pooling must be one of {listed} for {self.name!r}; got 'own'.")
        if self.name == "features" and self.train != ALL:
            raise ValueError(
                f"train must be {ALL!r} for 'features', which has no trunk; got {self.train!r}."
            )
        taken = BACKBONES[self.name].arguments
        known = [f"backbone.{key}" for key in (*type(self).model_fields, *taken)]
        problems = [
            f"{key} is not a key of a recipe with the backbone {self.name!r}."
            + checks.suggestion(f"backbone.{key}", known)
            for key in self.arguments
            if key not in taken
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self


class Loss(_WithArguments):
    """The loss. Every further key is an argument of it: ``beta`` for ``"mf_cwms"``."""

    name: Annotated[str, among(LOSSES)] = entry("mf_cwms", "a name of LOSSES")

    @property
    def compares_pairs(self) -> bool:
        """Whether a batch must hold several images of a class."""
        return LOSSES[self.name].sampling == "pairs"

    @property
    def has_fields(self) -> bool:
        """Whether it is a `weiss.MeanFieldLoss`."""
        return self.name.startswith("mf_")

    @model_validator(mode="after")
    def _arguments_belong_to_the_loss(self) -> "Loss":
        for key, whence in (("num_classes", "the data"), ("embedding_size", "the backbone")):
            if key in self.arguments:
                raise ValueError(f"{key} must be left out: it comes from {whence}.")
        if self.name in BASELINES:
            return self
        try:
            # On "meta" no fields are drawn, so that reading a recipe changes no random generator.
            with torch.device("meta"):
                make_loss(self.name, 2, 2, **self.arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(self._in_terms_of_keys(str(error))) from None
        return self

    def _in_terms_of_keys(self, message: str) -> str:
        unknown = re.search(r"has no argument '(.+?)'\.( Did you mean ')?", message)
        if unknown:
            hint = message[unknown.end() :] if unknown[2] else ""
            hint = f" Did you mean 'loss.{hint}" if hint else ""
            return f"{unknown[1]} is not a key of a recipe with the loss {self.name!r}.{hint}"
        if message.split(" ")[0] in self.arguments:
            return message
        key = next((key for key in self.arguments if key in message), "name")
        return f"{key} cannot be used for {self.name!r}: {message}"


class Augment(Section):
    """Random crops of training images; see `weiss.data.RandomCrop`."""

    size: MaybeCount = entry(None, "height and width; left out: the network's own")
    area: Range = entry((0.08, 1.0), "least and greatest share of the image's area")
    ratio: Range = entry((3 / 4, 4 / 3), "least and greatest width / height")
    flip: Annotated[float, is_a("a probability, 0 to 1")] = entry(0.5, "left-right flips")
    resize: MaybeCount = entry(None, "shorter side before the crop; left out: as it is")
    views: Index = entry(
        0, "on kept features: random crops of each training image; 0: its centre alone"
    )

    @model_validator(mode="after")
    def _is_a_crop(self) -> "Augment":
        RandomCrop(self.size or 224, self.area, self.ratio, self.flip, self.resize)
        return self


class Optim(Section):
    """The optimiser, its rates, and the clipping of gradients."""

    name: Annotated[str, among(("adamw", "rmsprop", "sgd"))] = entry("adamw", "the optimiser")
    lr: Positive = entry(1e-4, "of the network")
    class_lr: MaybePositive = entry(None, "of class vectors; left out: the loss's scale times lr")
    layer_decay: Annotated[
        float, Field(gt=0, le=1), is_a("a number greater than 0 and at most 1")
    ] = entry(
        1.0, "the last stage of the trunk has lr times this, the one before it that squared, ..."
    )
    weight_decay: NotNegative = entry(1e-4, "of every group")
    momentum: Share = entry(0.9, "for rmsprop and sgd")
    clip_value: NotNegative = entry(10.0, "largest entry of the network's gradients; 0: off")
    clip_norm: NotNegative = entry(0.0, "largest norm of the network's gradients; 0: off")


class Schedule(Section):
    """How all learning rates change."""

    name: Annotated[str, among(("step", "cosine", "constant"))] = entry("step", "the shape")
    every: Count = entry(10, "step: epochs between two falls, counted from the start")
    gamma: Positive = entry(0.5, "step: what the rates are multiplied by")
    ramp_epochs: NotNegative = entry(0.0, "epochs in which the rates rise linearly from 0")

    def factor(self, progress_in_epochs: float, epochs: int) -> float:
        """Return what every learning rate is multiplied by after some epochs, warm-up included.

        ``gamma ** floor(progress / every)`` for ``"step"``, half a cosine from 1 at the start to 0
        at ``epochs`` for ``"cosine"``, times the ramp.

        Example:
            >>> from weiss.runs import Schedule
            >>> Schedule(every=10, gamma=0.5).factor(25.0, epochs=60)
            0.25
        """
        factor = 1.0
        if self.name == "step":
            factor = self.gamma ** math.floor(progress_in_epochs / self.every)
        elif self.name == "cosine":
            factor = (1 + math.cos(math.pi * min(progress_in_epochs / epochs, 1.0))) / 2
        if self.ramp_epochs > 0:
            factor *= min(1.0, progress_in_epochs / self.ramp_epochs)
        return factor


class Train(Section):
    """Epochs, batches, precision, device."""

    epochs: Count = entry(60, "the largest number of epochs")
    batch_size: BatchSize = entry(128, "images in a batch, all processes together; auto: what fits")
    sampler: Annotated[str, among(("auto", "shuffled", "per_class"))] = entry(
        "auto", "auto: per_class for a loss over pairs, else shuffled"
    )
    per_class: Count = entry(4, "per_class: images of each class in a batch")
    steps: MaybeCount = entry(None, "per_class: batches an epoch; left out: images / batch size")
    accumulate: Count = entry(1, "number of parts in which a batch goes through the network")
    warmup_epochs: Index = entry(1, "first epochs, in which only head and class vectors train")
    warmup_on: Annotated[str, among(("images", "features"))] = entry(
        "images", "features: warm-up trains on features that are computed once"
    )
    patience: Index = entry(5, "early stopping: epochs without a better score; 0: never")
    precision: Annotated[str, among(("auto", "fp32", "bf16", "fp16"))] = entry("auto", "autocast")
    channels_last: Flag = entry(True, "memory layout of images")
    compile: Flag = entry(False, "torch.compile the network")
    graphs: Flag = entry(True, "capture the network as CUDA graphs and replay them, where possible")
    device: Annotated[str, Field(pattern=DEVICES), is_a("auto, cpu, cuda, cuda:N or mps")] = entry(
        "auto", "auto: the first GPU, else the CPU"
    )
    shard_classes: Flag = entry(
        False, "several processes: each keeps the mean fields of its own classes"
    )
    checkpoint_seconds: NotNegative = entry(60.0, "time between checkpoints; 0: after every step")


class Fields(Section):
    """How the mean fields are found; for the losses ``mf_*``."""

    how: Annotated[str, among(("joint", "alternating", "class_mean"))] = entry(
        "joint",
        "joint: trained with the network; alternating: solved in turns; class_mean: tracked",
    )
    start: Annotated[str, among(("random", "class_means"))] = entry(
        "random", "joint: where fields begin; class_means: of the network before training"
    )
    every: Count = entry(1, "alternating: epochs between two solutions")
    passes: Count = entry(5, "alternating: passes over the training embeddings when solving")
    lr: Positive = entry(0.1, "alternating: learning rate of the solve")
    momentum: Share = entry(0.9, "class_mean: the share of the old mean that stays")


class Evaluate(Section):
    """What is evaluated, how often, and by which metric."""

    on: Annotated[str, among(("test", "held_out"))] = entry(
        "test", "held_out: a fold of the training classes, which does not train"
    )
    every: Count = entry(1, "epochs between two evaluations")
    folds: Annotated[int, Field(ge=2), is_a("a whole number of at least 2")] = entry(
        5, "held_out: parts of the training classes"
    )
    fold: Index = entry(0, "held_out: the part that validates, counted from 0")
    order: Annotated[str, among(("shuffled", "sorted"))] = entry("shuffled", "held_out: of classes")
    then_test: Flag = entry(
        True, "held_out: at the end, measure the chosen network on the test set"
    )
    size: MaybeCount = entry(
        None, "height and width of the centre crop; left out: the network's own"
    )
    resize: MaybeCount = entry(None, "shorter side before it; left out: the network's own")
    batch_size: Count = entry(128, "images embedded at once")
    recall_at: Counts = entry((1, 2, 4, 8), "the k of recall@k")
    clustering: Flag = entry(False, "also cluster, which takes longer")
    metric: Annotated[str, among(TITLES)] = entry(
        "map_at_r", "the metric that chooses the best epoch"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Evaluate":
        if self.fold >= self.folds:
            raise ValueError(
                f"fold must be below evaluate.folds, {self.folds}, since folds count from 0; got "
                f"{self.fold}."
            )
        if self.size is not None and self.resize is not None and self.size > self.resize:
            raise ValueError(
                f"size must be at most evaluate.resize, {self.resize}, from which it is cut; got "
                f"{self.size}."
            )
        return self


class Track(Section):
    """Trackers that get the numbers of a run, too."""

    with_: Annotated[
        tuple[Annotated[str, among(("tensorboard", "wandb", "mlflow"))], ...],
        AS_TUPLE,
        WORD_OR_LIST,
    ] = entry((), "any of tensorboard, wandb, mlflow", alias="with")
    project: Text = entry("weiss", "the project of the run there")
