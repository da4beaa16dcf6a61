"""The run folder: its file names, writing it, reading it, loading its model.

Programs that read runs need this file and not the trainer. Every file is whole or not there.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base.checks import count, path_suggestion
from weiss._base.files import (
    alone,
    json_object,
    read_json,
    read_text,
    remove_leftovers,
    replacing,
)
from weiss._base.processes import is_main_process
from weiss._base.tensor_files import DamagedFileError, read_tensors, write_tensors
from weiss.backbones import BACKBONES, Embedder, make_backbone
from weiss.backbones.by_name import TIMM
from weiss.backbones.embedder import NO_HEAD
from weiss.backbones.lora import merged_state
from weiss.backbones.timm_networks import refuse_outside
from weiss.losses import make_loss
from weiss.losses.shards import whole_state
from weiss.runs import records
from weiss.runs.checkpoints import Checkpoints
from weiss.runs.recipe import with_new_keys
from weiss.runs.toml_text import read_toml

RECIPE, METRICS, RESULT = "recipe.toml", "metrics.jsonl", "result.json"
MODEL, CARD, STATE, PLOTS = "model.safetensors", "card.md", "state", "plots"
TEST_EMBEDDINGS = "test_embeddings.safetensors"
KEPT_ON_RESUME = {
    RECIPE: True,  # the complete recipe, and the versions and hardware of the run
    METRICS: True,  # one line per epoch
    RESULT: False,  # the best metrics, when and how they were reached
    MODEL: True,  # the best network and its fields, with a description
    CARD: False,  # the same for people
    TEST_EMBEDDINGS: False,  # of the test part, for ensembles; only repeats of a reality check
    STATE: True,  # a folder: states to resume from
    PLOTS: True,  # a folder: learning curves, order parameters
}
"""Everything that a run folder holds, and whether a run that continues keeps it.

False: deleted when a run is resumed. True: stays; its content is written again from the saved state
(`Position` in `weiss.training.state`). A run without a saved state starts again without its model;
its other files stay until new ones replace them. Locking a run removes half-written files of these
names.
"""
CHECKSUMS = "checksums"
"""The entry of result.json with checksums of metrics.jsonl and of its other entries; 0.1 wrote
none. recipe.toml has none: people may edit it, and a resumed run compares it with its state."""
OF_TRAINING = ("weights", "train", "lora_rank", "lora_alpha")
"""Keys of ``[backbone]`` that say how a network trains; a trained one does not depend on them."""
LOSS = "loss."
"""How the names of the loss's tensors begin in the file of the model."""
FACTS = "run"


class BusyFolderError(ValueError):
    """Another program is training in a folder."""


class Run:
    """A run folder.

    Args:
        folder: its path; it need not exist yet.
        trust: build its network even if its recipe names files or addresses outside of the folder,
            as ``timm:hf-hub:OWNER/NAME`` does.

    Example:
        >>> from weiss.runs import Run
        >>> Run("runs/nothing-here").exists()
        False
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        self.folder, self.trust = Path(folder), trust
        self.plots = self.folder / PLOTS

    def exists(self) -> bool:
        """Return whether a run has begun here."""
        return (self.folder / RECIPE).is_file()

    def is_finished(self) -> bool:
        """Return whether the run is finished."""
        return (self.folder / RESULT).is_file()

    @property
    def checkpoints(self) -> Checkpoints:
        """The states it can be resumed from."""
        return Checkpoints(self.folder / STATE)

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the run as nested dicts, under the present names of its keys."""
        self._refuse_other_folders()
        path = self.folder / RECIPE
        found: dict[str, Any] = with_new_keys(read_toml(path), of_a_run=True)
        for key, value in found.items():
            if key != "seed" and not isinstance(value, dict):
                raise ValueError(f"{path} must hold sections; {key} is none: {value!r:.80}.")
        lacking = [section for section in ("backbone", "loss") if section not in found]
        if lacking:
            raise ValueError(
                f"{path} must be the whole recipe of a run; it lacks [{'], ['.join(lacking)}]."
            )
        for section in ("backbone", "loss"):
            name = found[section].get("name")
            if not isinstance(name, str):
                raise ValueError(f"{path} must name its {section} in text; got {name!r:.80}.")
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch; empty before the end of the first."""
        path = self.folder / METRICS
        if not path.is_file():
            return []
        text = read_text(path)
        # Not splitlines: a text may hold other characters that end a line.
        *lines, rest = text.split("\n")
        found = []
        for number, line in enumerate([*lines, rest] if rest else lines, 1):
            name = f"{path}, line {number}"
            try:
                found.append(records.checked(records.Epoch, json_object(line, name), name))
            except ValueError as error:
                if number <= len(lines):
                    raise
                warnings.warn(f"{error} This last line is left out.", stacklevel=2)
        sums: dict[str, Any] = {}
        with suppress(ValueError, FileNotFoundError):  # no result yet, or itself damaged
            sums = self._result()[1]
        if sums.get(METRICS) not in (None, _checksum(text)):
            raise ValueError(
                f"{path} must match its checksum in {RESULT}; it does not: it is damaged. Resuming "
                "the run writes it again."
            )
        return found

    def result(self) -> dict[str, Any]:
        """Return the best metrics and how they were reached."""
        self._refuse_other_folders()
        path = self.folder / RESULT
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.folder} must hold a finished run; it has no {RESULT} yet. Wait, or "
                f"resume it: weiss train --resume --out {self.folder}"
            )
        try:
            return self._result()[0]
        except ValueError as error:
            raise ValueError(f"{error} Resuming the run writes it again.") from error

    def whole_result(self) -> dict[str, Any] | None:
        """Return the result; None before the end of the run, or with a warning if it is damaged."""
        try:
            return self.result() if self.exists() and self.is_finished() else None
        except ValueError as error:
            warnings.warn(f"{error} Until then it counts as unfinished.", stacklevel=2)
            return None

    def model(self, device: str | torch.device = "cpu") -> Embedder:
        """Return the best network, ready to embed."""
        recipe = self.recipe()
        tensors, _ = self._read_model()
        model = build_backbone(recipe["backbone"], weights=False, trust=self.trust)
        own = {name: value for name, value in tensors.items() if not name.startswith(LOSS)}
        self._load(model, own, "backbone")
        return model.to(device).eval()

    def loss(self, device: str | torch.device = "cpu") -> nn.Module:
        """Return the loss, with its fields, as it was beside the best network."""
        recipe = self.recipe()
        tensors, facts = self._read_model()
        size = recipe["backbone"].get("embedding_size")
        loss = build_loss(recipe["loss"], len(facts["class_names"]), size)
        own = {k.removeprefix(LOSS): v for k, v in tensors.items() if k.startswith(LOSS)}
        self._load(loss, own, "loss")
        return loss.to(device).eval()

    def test_embeddings(self) -> dict[str, Tensor] | None:
        """Return what `write_test_embeddings` wrote; None if nothing did.

        Raises:
            DamagedFileError: the file is damaged.
        """
        path = self.folder / TEST_EMBEDDINGS
        return read_tensors(path, is_ours=True)[0] if path.is_file() else None

    def model_facts(self) -> dict[str, Any] | None:
        """Return the facts in the file of the best network; None before there is one."""
        return self._read_model()[1] if (self.folder / MODEL).is_file() else None

    def reopen(self) -> None:
        """Remove the files that only a finished run has: this one continues."""
        for name, is_kept in KEPT_ON_RESUME.items():
            if not is_kept:
                (self.folder / name).unlink(missing_ok=True)

    def make_folder(self) -> None:
        """Make the folder of the run, if it is not there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--out must be a folder that can be made; {self.folder} cannot: {error.strerror}. "
                "Choose another place."
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other programs, and remove half-written files of killed ones."""
        with ExitStack() as stack:
            try:
                stack.enter_context(alone(self.folder / "run", wait=False))
            except BlockingIOError:
                raise BusyFolderError(
                    f"{self.folder} must not be written by two programs; another one is training "
                    "there. Wait for it, or choose another folder."
                ) from None
            remove_leftovers(self.folder, "|".join(map(re.escape, KEPT_ON_RESUME)))
            for name in KEPT_ON_RESUME:
                remove_leftovers(self.folder / name)  # if it is a folder
            yield

    def write_recipe(self, text: str) -> None:
        """Write the recipe: the run has begun."""
        self._write(RECIPE, text)

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write the metrics of all epochs so far."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result: the run is finished."""
        path, sums = self.folder / METRICS, {RESULT: _checksum(json.dumps(result))}
        if path.is_file():
            sums[METRICS] = _checksum(read_text(path))
        self._write(RESULT, json.dumps({**result, CHECKSUMS: sums}, indent=2) + "\n")

    def write_card(self, text: str) -> None:
        """Write the card."""
        self._write(CARD, text)

    def write_model(self, model: "Kept") -> None:
        """Write the network, the class vectors of the loss, and facts about them."""
        words = {"arch": model.architecture, FACTS: json.dumps(model.facts)}
        write_tensors(self.folder / MODEL, model.tensors, words)

    def write_test_embeddings(self, kept: Mapping[str, Tensor]) -> None:
        """Write `weiss.runs.evaluator.Embedded.kept` of the test part."""
        write_tensors(self.folder / TEST_EMBEDDINGS, kept, {})

    def _result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the result, and the checksums beside it."""
        path = self.folder / RESULT
        found = records.checked(records.Result, read_json(path), path)
        sums = found.pop(CHECKSUMS, None)
        if sums is None:
            return found, {}
        if not isinstance(sums, dict) or sums.get(RESULT) != _checksum(json.dumps(found)):
            raise ValueError(f"{path} must match its checksum; it does not: it is damaged.")
        return found, sums

    def _load(self, module: nn.Module, tensors: dict[str, Tensor], section: str) -> None:
        try:
            module.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(
                f"{self.folder / MODEL} must fit the [{section}] of {RECIPE} beside it; it does "
                "not. Was one of them changed, or copied from another run?"
            ) from error

    def _read_model(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        path = self.folder / MODEL
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.folder} must hold a model; there is no {MODEL} yet. Train until the first "
                "evaluation."
            )
        try:
            tensors, words = read_tensors(path)
            facts = json_object(words[FACTS], path)
            return tensors, records.checked(records.ModelFacts, facts, path)
        except KeyError as error:
            raise ValueError(f"{path} must be a model that a run wrote; it is not.") from error
        except DamagedFileError as error:
            raise ValueError(f"{error} Copy it again, or train it again.") from error

    def _refuse_other_folders(self) -> None:
        if not self.exists():
            beside = [p.name for p in self.folder.parent.glob("*") if (p / RECIPE).is_file()]
            hint = path_suggestion(self.folder.name, beside)
            raise FileNotFoundError(
                f"RUN must be the folder of a run, which holds {RECIPE}; {self.folder} is none."
                f"{hint} Train one: weiss train --out {self.folder}"
            )

    def _write(self, name: str, text: str) -> None:
        with replacing(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Kept:
    """A copy of a network and its loss, to be written later.

    Attributes:
        tensors: of the network under its own names, of the loss under ``loss.``.
        architecture: by which `load_weights` distinguishes ResNet v1 and v1.5.
        facts: epoch, metrics, names of the classes.
    """

    tensors: dict[str, Tensor]
    architecture: str
    facts: dict[str, Any]

    @classmethod
    def now(cls, model: nn.Module, loss: nn.Module, facts: dict[str, Any]) -> "Kept":
        """Copy a network and its loss; all processes must call it if they share the classes.

        Adapters are added to the weights, so that the copy is a plain network.
        """
        state = whole_state(loss, wanted=is_main_process())
        tensors = merged_state(model)
        tensors |= {f"{LOSS}{name}": value.clone() for name, value in state.items()}
        return cls(tensors, str(getattr(model, "architecture", "")), facts)


def build_backbone(
    section: dict[str, Any], *, weights: bool = True, trust: bool = False
) -> Embedder:
    """Build the network that a recipe's ``[backbone]`` asks for.

    Args:
        section: the section's keys and values.
        weights: load its pretrained weights; False if its tensors are loaded afterwards.
        trust: for False, when somebody else may have made the section: build the network even if
            that opens other files or addresses.

    Raises:
        UntrustedError: it would open them.
    """
    wanted = dict(section)
    name = wanted.pop("name")
    wanted.pop("dimensions", None)  # prefixes of the embedding: the network is the same
    if not weights:
        for key in OF_TRAINING:
            wanted.pop(key, None)
        if isinstance(name, str) and name.startswith(TIMM) and not trust:
            refuse_outside(name.removeprefix(TIMM), wanted)
        if name not in BACKBONES or BACKBONES[name].needs_weights:
            wanted["weights"] = "scratch"
    size = wanted.pop("embedding_size", None)
    if wanted.get("head") != NO_HEAD:
        count("embedding_size", size, "a network with a head")  # one that is not there is refused
    return make_backbone(name, size, **wanted)


def build_loss(section: dict[str, Any], num_classes: int, embedding_size: int) -> nn.Module:
    """Build the loss that a recipe's ``[loss]`` asks for."""
    wanted = dict(section)
    return make_loss(wanted.pop("name"), num_classes, embedding_size, **wanted)
