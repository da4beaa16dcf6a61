"""A whole recipe: its sections, contradictions between them, and older names of keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError, model_validator

from weiss._base import checks
from weiss.backbones.embedder import NO_HEAD
from weiss.backbones.trained_part import FROZEN
from weiss.losses.by_name import LOSSES
from weiss.runs.recipe_sections import (
    Augment,
    Backbone,
    Data,
    Evaluate,
    Fields,
    Index,
    Loss,
    Optim,
    Schedule,
    Section,
    Track,
    Train,
    entry,
    plain,
)
from weiss.runs.toml_text import to_toml_value

RENAMED = {"loss.products": "loss.matmul_dtype"}
"""Keys of recipes that older versions wrote, and the present ones."""
REMOVED = {
    "optim.touched_rows": "optim.touched_rows was removed, since a whole step gained less than 1 % "
    "by it. Leave it out: plain AdamW does the same, except that it also moves rows without a "
    "gradient, by their moments."
}
MOST, MOST_WORDS = 50, 2000
"""Problems that a message lists, and letters of each."""
OF_A_MACHINE = (
    *("train.device", "train.graphs", "track."),
    *("data.root", "data.keep", "data.num_workers", "data.cache"),
)
"""Keys that may differ from machine to machine; a section with a dot stands for all of its keys."""


class Recipe(Section):
    """One experiment: keys that are not given have their defaults.

    Example:
        >>> from weiss.runs import recipe_from
        >>> recipe = recipe_from("cub", ["loss.name=proxy_anchor", "train.epochs=20"])
        >>> recipe.backbone.name, recipe.loss.name, recipe.train.epochs
        ('bn_inception', 'proxy_anchor', 20)
    """

    seed: Index = entry(0, "of every random choice in training")
    data: Data = Data()
    backbone: Backbone = Backbone()
    loss: Loss = Loss()
    augment: Augment = Augment()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    train: Train = Train()
    fields: Fields = Fields()
    evaluate: Evaluate = Evaluate()
    track: Track = Track()
    made_with: dict[str, Any] = entry({}, "versions, commit, hardware of a run; for the record")

    @property
    def sampler_name(self) -> str:
        """``"shuffled"`` or ``"per_class"``: ``train.sampler`` with auto resolved."""
        if self.train.sampler != "auto":
            return self.train.sampler
        return "per_class" if self.loss.compares_pairs else "shuffled"

    @property
    def tests_at_the_end(self) -> bool:
        """Whether the network that held-out classes chose is measured on the test set."""
        return self.evaluate.on == "held_out" and self.evaluate.then_test

    def is_on_features(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0, trains on kept features, and not on images."""
        in_warmup = self.train.warmup_on == "features" and epoch < self.train.warmup_epochs
        return in_warmup or self.backbone.train == FROZEN

    def as_dict(self) -> dict[str, Any]:
        """Return every entry as nested dicts of plain values; what is None is left out."""
        values: dict[str, Any] = plain(self.model_dump(by_alias=True))
        if not self.made_with:
            del values["made_with"]
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if problems := list(self._contradictions()):
            raise ValueError("\n".join(problems))
        return self

    def _contradictions(self) -> Iterator[str]:
        train, loss, sampler = self.train, self.loss, self.sampler_name
        if loss.compares_pairs and sampler == "shuffled":
            yield (
                f"loss {loss.name!r} compares images of one class and needs several of each in a "
                "batch, which train.sampler='shuffled' does not promise. Set "
                "train.sampler='per_class' or leave it on 'auto'."
            )
        if sampler == "per_class":
            if loss.compares_pairs and train.per_class < 2:
                yield (
                    f"train.per_class must be at least 2 for loss {loss.name!r}, which compares "
                    f"images of one class; got {train.per_class}."
                )
            yield from self._batch_in("per_class", "images of each class")
            size = train.batch_size
            if loss.compares_pairs and size != "auto" and size // train.per_class == 1:
                yield (
                    f"train.batch_size must hold two classes or more of train.per_class images, "
                    f"{train.per_class}, for loss {loss.name!r}, which tells classes apart; got "
                    f"{size}. Set train.batch_size={2 * train.per_class}, or more."
                )
        elif train.steps is not None:
            yield (
                "train.steps must be left out for the sampler 'shuffled', whose epoch shows every "
                f"image once; got {train.steps}. Set train.sampler='per_class' to choose it."
            )
        yield from self._batch_in("accumulate", "its parts")
        if train.warmup_epochs > train.epochs:
            yield (
                f"train.warmup_epochs must be at most train.epochs, {train.epochs}, which include "
                f"the warm-up; got {train.warmup_epochs}."
            )
        if self.backbone.head == NO_HEAD:
            yield from self._not_without_head()
        yield from self._not_on_features()
        if 0 < train.patience < self.evaluate.every:
            yield (
                f"train.patience must be at least evaluate.every, {self.evaluate.every}, or "
                f"training stops before it is measured again; got {train.patience}. Or set 0, to "
                "never stop."
            )
        named = ", ".join(name for name in LOSSES if Loss(name=name).has_fields)
        if train.shard_classes:
            yield from self._not_for_shards(named)
        yield from self._unused_settings_of_fields(named)
        if self.backbone.dimensions and self.fields.how == "alternating":
            yield (
                "fields.how must not be 'alternating' with backbone.dimensions: fields would be "
                "solved for the whole embedding alone. Set fields.how='joint'."
            )

    def _unused_settings_of_fields(self, named: str) -> Iterator[str]:
        fields, loss = self.fields, self.loss
        for key, default in (("how", "joint"), ("start", "random")):
            given = getattr(fields, key)
            if given != default and not loss.has_fields:
                yield (
                    f"fields.{key} must be {default!r} for loss {loss.name!r}, which has no mean "
                    f"fields; got {given!r}. Leave it out, or choose one of {named}."
                )
        if fields.start != "random" and fields.how != "joint":
            yield (
                f"fields.start must be left out for fields.how={fields.how!r}, which sets fields "
                f"to class means by itself; got {fields.start!r}."
            )

        each = loss.arguments.get("fields_per_class", 1)
        if fields.how == "class_mean" and each != 1:
            yield (
                "fields.how must be 'joint' or 'alternating' for several fields a class, which one "
                f"class mean cannot track; got 'class_mean' with loss.fields_per_class={each}."
            )

    def _not_on_features(self) -> Iterator[str]:
        """Yield what contradicts a training on kept features, or needs one."""
        train, is_frozen = self.train, self.backbone.train == FROZEN
        if train.warmup_on == "features" and self.backbone.name == "features":
            yield "train.warmup_on must be 'images' for the backbone 'features': it has no trunk."
        if train.warmup_on == "features" and not train.warmup_epochs and not is_frozen:
            yield (
                "train.warmup_on must be 'images' without a warm-up; got 'features' with "
                "train.warmup_epochs=0. Set train.warmup_epochs, or backbone.train='frozen'."
            )
        if self.augment.views and train.warmup_on == "images" and not is_frozen:
            yield (
                f"augment.views must be 0 where no epoch trains on kept features; got "
                f"{self.augment.views}. Set backbone.train='frozen' or train.warmup_on='features', "
                "or leave it out."
            )
        if is_frozen and self.optim.layer_decay != 1:
            yield (
                "optim.layer_decay must be 1 for backbone.train='frozen', of which no stage "
                f"trains; got {self.optim.layer_decay:g}. Leave it out."
            )

    def _not_without_head(self) -> Iterator[str]:
        if self.train.warmup_epochs:
            yield (
                "train.warmup_epochs must be 0 for backbone.head='none': in a warm-up only the "
                f"head trains, and there is none; got {self.train.warmup_epochs}."
            )
        if self.backbone.train == FROZEN:
            yield (
                "backbone.train must not be 'frozen' for backbone.head='none': nothing would "
                "train. Set backbone.head='linear'."
            )

    def _not_for_shards(self, named: str) -> Iterator[str]:
        law = "train.shard_classes must be false"
        if not self.loss.has_fields:
            yield (
                f"{law} for loss {self.loss.name!r}, which has no mean fields. Leave it out, or "
                f"choose one of {named}."
            )
        elif self.fields.how != "joint":
            yield (
                f"{law} for fields.how={self.fields.how!r}, which needs the fields of all classes "
                "at once. Set fields.how='joint'."
            )
        if self.loss.arguments.get("impl") == "reference":
            yield f"{law} for loss.impl='reference', which knows no shards. Set loss.impl='auto'."
        if self.train.precision == "fp16":
            yield (
                f"{law} for train.precision='fp16', in which each process would scale by its own "
                "fields. Set train.precision='bf16'."
            )

    def _batch_in(self, key: str, what: str) -> Iterator[str]:
        size, divisor = self.train.batch_size, getattr(self.train, key)
        if size != "auto" and size % divisor:
            near = max(size // divisor, 1) * divisor
            yield (
                f"train.batch_size must be a multiple of train.{key}, {divisor} ({what}); got "
                f"{size}. Set train.batch_size={near}, say."
            )


def with_new_keys(values: Any, *, of_a_run: bool = False) -> Any:
    """Return the nested dicts of a recipe under the present names of its keys, in their order.

    Removed keys are dropped if they are false, or if the recipe is that of a run, which has been
    made; the others are refused later.
    """
    if not isinstance(values, Mapping):
        return values
    found = dict(values)
    for old in (*RENAMED, *REMOVED):
        section, _, key = old.partition(".")
        given = found.get(section)
        if not isinstance(given, Mapping) or key not in given:
            continue
        name = RENAMED.get(old, old).partition(".")[2]
        is_dropped = name in given if old in RENAMED else of_a_run or given[key] is False
        kept = {k: v for k, v in given.items() if not (is_dropped and k == key)}
        found[section] = {name if k == key else k: v for k, v in kept.items()}
    return found


def recipe_from_dict(values: Mapping[str, Any], name: str = "the recipe") -> Recipe:
    """Return the recipe of nested dicts, as `Recipe.as_dict` or a TOML file gives them, checked.

    What is None has its default, and old names of keys are understood.

    Raises:
        ValueError: ``name`` cannot be used, with every problem, one a line.
    """
    try:
        return Recipe.model_validate(plain(with_new_keys(values)))
    except ValidationError as error:
        found = error.errors()
        problems = [line[:MOST_WORDS] for each in found[:MOST] for line in _problems(each)]
        more = [f"and {len(found) - MOST:,} more"] if len(found) > MOST else []
        listed = "".join(f"\n  {problem}" for problem in [*problems, *more])
        raise ValueError(f"{name} cannot be used:{listed}") from None


def _problems(error: Any) -> Iterator[str]:
    key, kind = ".".join(map(str, error["loc"])), error["type"]
    if kind == "extra_forbidden":
        yield REMOVED.get(key) or f"{key} is not a key of a recipe.{_near(key)}"
    elif kind == "law":
        yield f"{key} {error['msg']}"
    elif kind == "value_error":
        # The message of a section begins with its key; that of the recipe is complete.
        yield from (f"{key}.{line}".lstrip(".") for line in str(error["ctx"]["error"]).split("\n"))
    elif key:
        what = f"a section, [{key}]" if key in Recipe.model_fields else "a list"
        yield f"{key} must be {what}; got {error['input']!r}."
    else:
        yield f"a recipe must be a dict of sections; got {error['input']!r}."


def _near(key: str) -> str:
    """Return the hint for an unknown key: the same word in another section, or a similar one."""
    known = list(Recipe.model_fields)
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            keys = field.annotation.model_fields.items()
            known += [f"{name}.{inner.alias or word}" for word, inner in keys]
    same = [one for one in known if one.rpartition(".")[2] == key.rpartition(".")[2]]
    return checks.suggestion(key, same) or checks.suggestion(key, known)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Return the keys in which another recipe differs, one line each, without ``made_with``.

    Example:
        >>> from weiss.runs import differences, recipe_from
        >>> differences(recipe_from("cub"), recipe_from("cub", ["train.epochs=20"]))
        ['train.epochs: 60 -> 20']
    """
    old, new = (dict(_flat(recipe.as_dict())) for recipe in (a, b))
    return [
        f"{key}: {old.get(key, 'none')} -> {new.get(key, 'none')}"
        for key in {**old, **new}
        if old.get(key) != new.get(key) and not key.startswith("made_with.")
    ]


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", to_toml_value(value)
