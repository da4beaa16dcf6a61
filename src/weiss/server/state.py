"""What a server shows: a catalogue and its prepared answers; and how a newer one replaces it.

A request takes the state once and uses it to its end. A newer index is opened beside the old one,
in a thread, and then replaces it by one assignment: requests under way finish on the old one.
"""

import asyncio
import gzip
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weiss.catalogue import Catalogue
from weiss.catalogue.manifest import MANIFEST
from weiss.server.overview import classes_json, map_json
from weiss.server.schemas import GroupAnswer, ItemAnswer, UnknownAnswer

POLL_SECONDS = 1.0
"""How often the state of ``index.json`` is compared; one call of the system."""
RETRY_SECONDS = 30.0
"""When an index that could not be opened is tried again: a copy may not be finished."""
MOST_UNKNOWN, MOST_GROUPS, MOST_OF_GROUP = 5_000, 50, 12
"""Unknown items that are grouped, groups that are shown, and items of each."""
log = logging.getLogger(__name__)


class State:
    """A catalogue and the answers that do not depend on a request.

    Attributes:
        catalogue: the opened index.
        version: browsers keep thumbnails by their address, which has this; another index, or
            another state of it, may use the same ids.
        sizes: the number of items of each class.
        classes: the answer of ``/classes``.
        map: the answer of ``/map``; ``packed_map`` is the same compressed.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.version = secrets.token_hex(4)
        self.sizes = dict(catalogue.classes())
        self.classes = classes_json(catalogue, self.thumbnail_of)
        self.map = map_json(catalogue)
        self.packed_map = gzip.compress(self.map, 6)
        self._grouping = threading.Lock()
        self._unknown: UnknownAnswer | None = None

    def unknown(self) -> UnknownAnswer:
        """Return the answer of ``/unknown``, made when it is first asked for."""
        with self._grouping:
            if self._unknown is None:
                groups = self.catalogue.unknown(MOST_UNKNOWN)
                self._unknown = UnknownAnswer(
                    total=len(groups),
                    is_cut=sum(map(len, groups)) == MOST_UNKNOWN,
                    groups=[
                        GroupAnswer(
                            count=len(group),
                            items=[
                                ItemAnswer.model_validate(self.with_thumbnail(item.as_dict()))
                                for item in group[:MOST_OF_GROUP]
                            ],
                        )
                        for group in groups[:MOST_GROUPS]
                    ],
                )
            return self._unknown

    def thumbnail_of(self, id: int) -> str:
        """Return the address of a thumbnail."""
        return f"/items/{id}/thumbnail?v={self.version}"

    def with_thumbnail(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an item for JSON with the address of its thumbnail."""
        return {**item, "thumbnail": self.thumbnail_of(item["id"])}


class Follower:
    """Keeps the current state, and opens the index again when its folder has changed.

    Args:
        catalogue: the index as it is now.
        folder: its folder.
        reopen: opens the index of that folder; None if it is not to be followed.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        folder: str | Path | None = None,
        reopen: Callable[[], Catalogue] | None = None,
    ) -> None:
        self.state = State(catalogue)
        self._folder, self._reopen = folder, reopen
        self._seen: tuple[int, ...] | None = None
        self._again = float("inf")  # when an index that was refused is tried again
        self._told = ""

    async def follow(self) -> None:
        """Look for changes until it is cancelled."""
        while self._reopen is not None:
            await asyncio.sleep(POLL_SECONDS)
            newer = await asyncio.to_thread(self.newer)
            if newer is not None:
                self.state = newer

    def newer(self) -> State | None:
        """Return the state of an index that has changed; None if it has not, or is damaged.

        Whatever is wrong with the new one, the old one is kept, and the log gets one line.
        """
        assert self._folder is not None
        assert self._reopen is not None
        found = _identity(Path(self._folder) / MANIFEST)
        if found == self._seen and time.monotonic() < self._again:
            return None
        self._seen, self._again = found, float("inf")
        current = self.state.catalogue
        try:
            if not current.is_outdated():
                self._told = ""
                return None
            opened = self._reopen()
            ways = {(each.short_side, each.scaled_decoding) for each in (opened, current)}
            if len(ways) > 1:  # the processes that decode uploads know the old way
                raise ValueError(
                    "its network must take pictures of the same size as before, decoded in the "
                    "same way; it takes others. Start the server again"
                )
            state = State(opened)
        except Exception as error:  # a server that works must not end with a bad change
            self._again = time.monotonic() + RETRY_SECONDS
            if str(error) != self._told:
                self._told = str(error)
                log.error("The index has changed and the old one is still served: %s", error)
            return None
        self._told = ""
        log.warning("The index has changed: %d items are served now.", len(opened))
        return state


def _identity(path: Path) -> tuple[int, ...]:
    """Return what differs when a file was replaced; nothing if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
