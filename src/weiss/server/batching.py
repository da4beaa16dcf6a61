"""Concurrent searches share one forward pass.

A network takes little longer for eight pictures than for one. A request submits a job and waits for
its future; one thread takes all waiting jobs, embeds their pictures together and searches for all
of them. It waits a few milliseconds for announced searches, and not at all if there are none.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue import Catalogue, Hit
from weiss.server.limits import Limits, UnavailableError

CLOSE_SECONDS = 10.0
"""How long `Batcher.close` waits for the thread."""
STOPPED = "a search needs a running server; this one is being stopped"


class Slots:
    """A limited number of slots, taken by the event loop alone; ``name`` is for messages."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._of: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def take(self, client: str = "") -> Iterator[None]:
        """Hold a slot for a client; raise `UnavailableError` if none is free.

        One client gets at most three quarters of the slots; the rest is for others.
        """
        own = self._of[client]
        if self.taken >= self._most:
            raise self._busy(f"{self.taken} {self._name}")
        if client and own >= self._most - self._most // 4:
            raise self._busy(f"{own} {self._name} of this client")
        self.taken += 1
        self._of[client] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._of[client] -= 1
            if not self._of[client]:
                del self._of[client]

    def _busy(self, number: str) -> UnavailableError:
        return UnavailableError(f"a search needs a free place; {number} are under way")


@dataclass
class _Job:
    """A search with a picture, or with an item, in the catalogue of its request."""

    catalogue: Catalogue
    k: int
    where: tuple[str, ...] = ()
    picture: Array | None = None
    item: int | None = None
    answer: "Future[list[Hit]]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """One thread that answers searches, several at a time.

    Args:
        limits: of the number of searches, the size of a batch, and the time to gather it.
        count: called with the number of pictures of each forward pass.

    Attributes:
        searches: slots of searches that wait for an answer.
        announced: slots of pictures that are being decoded; a forward pass may wait for them.
    """

    def __init__(
        self,
        limits: Limits,
        count: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._limits, self._count = limits, count
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.searches = Slots(limits.max_waiting, "searches")
        self.announced = Slots(limits.max_uploads, "uploads")
        self._oldest: _Job | None = None  # of those that are being answered
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether jobs are answered."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    @property
    def oldest(self) -> float:
        """Seconds that the oldest unanswered search has waited; 0 if there is none."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def picture(
        self, catalogue: Catalogue, pixels: Array, k: int, where: Sequence[str] = ()
    ) -> "Future[list[Hit]]":
        """Search with a picture, uint8 ``(height, width, channels)``, under conditions."""
        return self._submit(_Job(catalogue, k, tuple(where), picture=pixels))

    def item(
        self, catalogue: Catalogue, id: int, k: int, where: Sequence[str] = ()
    ) -> "Future[list[Hit]]":
        """Search with an item, which is not found itself, under conditions."""
        return self._submit(_Job(catalogue, k, tuple(where), item=id))

    def close(self) -> None:
        """Answer the jobs that were submitted, then end the thread."""
        with self._lock:
            self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _submit(self, job: _Job) -> "Future[list[Hit]]":
        with self._lock:
            if self._closed:
                raise UnavailableError(STOPPED)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="embed", daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return job.answer

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            self._oldest = first
            # Requests that were cancelled meanwhile need no answer.
            gathered = self._gather(first)
            jobs = [job for job in gathered if job.answer.set_running_or_notify_cancel()]
            # After a change of the index two catalogues may have jobs.
            for own in {id(job.catalogue): job.catalogue for job in jobs}.values():
                self._answer([job for job in jobs if job.catalogue is own])
            self._oldest = None
            del first, gathered, jobs  # an idle thread must not keep an old catalogue

    def _gather(self, first: _Job) -> list[_Job]:
        """Return a job and those that follow soon."""
        jobs, deadline = [first], time.monotonic() + self._limits.gather_seconds
        while len(jobs) < self._limits.max_batch:
            try:
                # Without further requests under way there is nothing to wait for.
                expected = self.searches.taken + self.announced.taken
                left = deadline - time.monotonic() if len(jobs) < expected else 0.0
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            jobs.append(job)
        return jobs

    def _answer(self, jobs: list[_Job]) -> None:
        try:
            found = self._find(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            # One job has failed: answer each of them alone.
            for job in jobs:
                self._answer([job])
            return
        for job, hits in zip(jobs, found, strict=True):
            job.answer.set_result(hits[: job.k])

    def _find(self, jobs: list[_Job]) -> list[list[Hit]]:
        """Return the hits of every job of one catalogue, as many as the largest k."""
        catalogue = jobs[0].catalogue
        vectors = np.empty((len(jobs), catalogue.embedding_size), np.float32)
        pictures = {at: job.picture for at, job in enumerate(jobs) if job.picture is not None}
        if pictures:
            self._count(len(pictures))
            vectors[list(pictures)] = catalogue.embed(list(pictures.values()))
        for at, job in enumerate(jobs):
            if job.item is not None:
                vectors[at] = catalogue.vector(job.item)
        found: list[list[Hit]] = [[]] * len(jobs)
        for where in dict.fromkeys(job.where for job in jobs):
            rows = [at for at, job in enumerate(jobs) if job.where == where]
            items, most = [jobs[at].item for at in rows], max(jobs[at].k for at in rows)
            hits = catalogue.search(vectors[rows], most, leave_out=items, where=where)
            for at, own in zip(rows, hits, strict=True):
                found[at] = own
        return found
