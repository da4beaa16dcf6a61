"""The states that a run can be resumed from: the last two, each whole or not there.

A state is tensors by name and a few facts. Reading one runs no code from it (see
`_base.tensor_files`).
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from weiss._base.files import json_object
from weiss._base.tensor_files import DamagedFileError, read_tensors, write_tensors

KEPT = 2
"""How many states stay: the newest, and the one before it in case that one is damaged."""
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class State:
    """Everything that a run needs to be resumed: tensors by name, and facts in values of JSON."""

    tensors: Mapping[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The states in a folder, each named by its number of steps; the first one makes the folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def save(self, step: int, state: State) -> None:
        """Write a state, and remove all but the last two."""
        write_tensors(self._path(step), state.tensors, {"facts": json.dumps(state.facts)})
        for path in self.files()[:-KEPT]:
            path.unlink(missing_ok=True)

    def newest(self) -> State | None:
        """Return the newest whole state, with a warning for each damaged one; None without any."""
        files = self.files()
        for path in reversed(files):
            try:
                return self.read(int(path.stem))
            except (DamagedFileError, KeyError, ValueError) as error:
                why = error if isinstance(error, DamagedFileError) else f"{path} holds no state."
                before = " The state before it is used." if path != files[0] else ""
                warnings.warn(f"{why}{before}", stacklevel=2)
                # Renamed, or it would count as one of the states to keep.
                path.replace(path.with_suffix(".damaged"))
        if files:
            raise ValueError(
                f"one of the states in {self.folder} must be whole to resume; all {len(files)} are "
                "damaged. Start the run again in another folder."
            )
        return None

    def read(self, step: int) -> State:
        """Return the state after a number of steps, which must be there and whole."""
        tensors, facts = read_tensors(self._path(step), is_ours=True)
        return State(tensors, json_object(facts["facts"], self._path(step)))

    def remove_all_but_the_newest(self) -> None:
        """Keep the newest state; remove the others and damaged ones."""
        for path in (*self.files()[:-1], *self.folder.glob("*.damaged")):
            path.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Return the files of the states, the oldest first."""
        found = [path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:09d}{SUFFIX}"
