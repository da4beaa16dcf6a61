"""The states a run can go on from: the last two, each whole or not there.

A state is tensors by name and a few facts. Nothing in it is ever run (see `_base.tensor_files`).
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from weiss._base.tensor_files import DamagedFileError, read_tensors, write_tensors

KEPT = 2
"""How many states stay: the newest, and one to fall back on should that be damaged."""
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class State:
    """What a run needs to go on.

    Attributes:
        tensors: parameters, buffers and moments by name, on the CPU.
        facts: where the run was, as JSON can say it.
    """

    tensors: Mapping[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The states in a folder, named by the number of steps behind them.

    Args:
        folder: where they lie; made when the first is saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def save(self, step: int, state: State) -> None:
        """Write a state, and remove all but the last two."""
        write_tensors(self._path(step), state.tensors, {"facts": json.dumps(state.facts)})
        for path in self.files()[:-KEPT]:
            path.unlink(missing_ok=True)

    def newest(self) -> State | None:
        """Return the newest state that is whole; None if there has never been one.

        A damaged one is passed over with a warning.
        """
        files = self.files()
        for path in reversed(files):
            try:
                return self.read(int(path.stem))
            except (DamagedFileError, KeyError, ValueError) as error:
                why = error if isinstance(error, DamagedFileError) else f"{path} holds no state."
                before = " The state before it is used." if path != files[0] else ""
                warnings.warn(f"{why}{before}", stacklevel=2)
                # Out of the way, or it would count as one of those to keep.
                path.replace(path.with_suffix(".damaged"))
        if files:
            raise ValueError(
                f"one of the states in {self.folder} must be whole to go on; all {len(files)} are "
                "damaged. Start the run anew in another folder."
            )
        return None

    def read(self, step: int) -> State:
        """Return the state after so many steps, which must be there and whole."""
        tensors, facts = read_tensors(self._path(step), is_ours=True)
        return State(tensors, json.loads(facts["facts"]))

    def remove_all_but_the_newest(self) -> None:
        """Keep one state, and nothing that was found damaged."""
        for path in (*self.files()[:-1], *self.folder.glob("*.damaged")):
            path.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Return the files of the states, the oldest first."""
        found = [path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:09d}{SUFFIX}"
