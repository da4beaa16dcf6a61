"""The run folder: its file names, writing it, reading it, loading its model.

    recipe.toml         the complete recipe, and the versions and hardware of the run
    metrics.jsonl       one line an epoch
    result.json         the best metrics, when and how they were reached
    model.safetensors   the best network and its fields, with a description
    card.md             the same for people
    state/              states to resume from
    plots/              learning curves, order parameters

Programs that read runs need this file and not the trainer. Every file is whole or not there.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base.checks import suggestion
from weiss._base.files import alone, remove_leftovers, replacing
from weiss._base.processes import is_main_process
from weiss._base.tensor_files import DamagedFileError, read_tensors, write_tensors
from weiss.backbones import BACKBONES, Embedder, make_backbone
from weiss.losses import make_loss
from weiss.losses.shards import whole_state
from weiss.runs.checkpoints import Checkpoints
from weiss.runs.recipe import with_new_keys
from weiss.runs.toml_text import read_toml

RECIPE, METRICS, RESULT = "recipe.toml", "metrics.jsonl", "result.json"
MODEL, CARD, STATE, PLOTS = "model.safetensors", "card.md", "state", "plots"
LOSS = "loss."
"""How the names of the loss's tensors begin in the file of the model."""
FACTS = "run"


class BusyFolderError(ValueError):
    """Another program is training in a folder."""


class Run:
    """A run folder.

    Args:
        folder: its path; it need not exist yet.

    Example:
        >>> from weiss.runs import Run
        >>> Run("runs/nothing-here").exists()
        False
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
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
        lacking = [section for section in ("backbone", "loss") if section not in found]
        if lacking:
            raise ValueError(
                f"{path} must be the whole recipe of a run; it lacks [{'], ['.join(lacking)}]."
            )
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch; empty before the end of the first."""
        path = self.folder / METRICS
        if not path.is_file():
            return []
        return [_json(path, line) for line in path.read_text(encoding="utf-8").splitlines()]

    def result(self) -> dict[str, Any]:
        """Return the best metrics and how they were reached."""
        self._refuse_other_folders()
        path = self.folder / RESULT
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.folder} must hold a finished run; it has no {RESULT} yet. Wait, or "
                f"resume it: weiss train --resume --out {self.folder}"
            )
        return _json(path, path.read_text(encoding="utf-8"))

    def model(self, device: str | torch.device = "cpu") -> Embedder:
        """Return the best network, ready to embed."""
        recipe = self.recipe()
        tensors, _ = self._read_model()
        model = build_backbone(recipe["backbone"], weights=False)
        own = {name: value for name, value in tensors.items() if not name.startswith(LOSS)}
        self._load(model, own, "backbone")
        return model.to(device).eval()

    def loss(self, device: str | torch.device = "cpu") -> nn.Module:
        """Return the loss, with its fields, as it was beside the best network."""
        recipe = self.recipe()
        tensors, facts = self._read_model()
        loss = build_loss(
            recipe["loss"], len(facts["class_names"]), recipe["backbone"]["embedding_size"]
        )
        own = {k.removeprefix(LOSS): v for k, v in tensors.items() if k.startswith(LOSS)}
        self._load(loss, own, "loss")
        return loss.to(device).eval()

    def model_facts(self) -> dict[str, Any] | None:
        """Return the facts in the file of the best network; None before there is one."""
        return self._read_model()[1] if (self.folder / MODEL).is_file() else None

    def reopen(self) -> None:
        """Remove result and card: the run continues."""
        for name in (RESULT, CARD):
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
            names = "|".join(map(re.escape, (RECIPE, METRICS, RESULT, MODEL, CARD)))
            remove_leftovers(self.folder, names)
            remove_leftovers(self.folder / STATE)
            remove_leftovers(self.plots)
            yield

    def write_recipe(self, text: str) -> None:
        """Write the recipe: the run has begun."""
        self._write(RECIPE, text)

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write the metrics of all epochs so far."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result: the run is finished."""
        self._write(RESULT, json.dumps(result, indent=2) + "\n")

    def write_card(self, text: str) -> None:
        """Write the card."""
        self._write(CARD, text)

    def write_model(self, model: "Kept") -> None:
        """Write the network, the class vectors of the loss, and facts about them."""
        words = {"arch": model.architecture, FACTS: json.dumps(model.facts)}
        write_tensors(self.folder / MODEL, model.tensors, words)

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
            return tensors, json.loads(words[FACTS])
        except KeyError as error:
            raise ValueError(f"{path} must be a model that a run wrote; it is not.") from error
        except DamagedFileError as error:
            raise ValueError(f"{error} Copy it again, or train it again.") from error

    def _refuse_other_folders(self) -> None:
        if not self.exists():
            beside = [p.name for p in self.folder.parent.glob("*") if (p / RECIPE).is_file()]
            hint = suggestion(self.folder.name, beside)
            raise FileNotFoundError(
                f"RUN must be the folder of a run, which holds {RECIPE}; {self.folder} is none."
                f"{hint} Train one: weiss train --out {self.folder}"
            )

    def _write(self, name: str, text: str) -> None:
        with replacing(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} must be JSON; it is cut off or changed: {error}.") from error
    return found


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
        """Copy a network and its loss; all processes must call it if they share the classes."""
        state = whole_state(loss, wanted=is_main_process())
        tensors = {name: value.clone() for name, value in model.state_dict().items()}
        tensors |= {f"{LOSS}{name}": value.clone() for name, value in state.items()}
        return cls(tensors, str(getattr(model, "architecture", "")), facts)


def build_backbone(section: dict[str, Any], *, weights: bool = True) -> Embedder:
    """Build the network that a recipe's ``[backbone]`` asks for.

    Args:
        section: the section's keys and values.
        weights: load its pretrained weights; False if its tensors are loaded afterwards.
    """
    wanted = dict(section)
    name = wanted.pop("name")
    if not weights:
        wanted.pop("weights", None)
        if name not in BACKBONES or BACKBONES[name].needs_weights:
            wanted["weights"] = "scratch"
    return make_backbone(name, wanted.pop("embedding_size"), **wanted)


def build_loss(section: dict[str, Any], num_classes: int, embedding_size: int) -> nn.Module:
    """Build the loss that a recipe's ``[loss]`` asks for."""
    wanted = dict(section)
    return make_loss(wanted.pop("name"), num_classes, embedding_size, **wanted)
