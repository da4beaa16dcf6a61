r"""Which worker does which unit: a table in a database that any number of workers share.

A worker claims a unit by inserting its row, or by raising the number of attempts of a row that no
worker holds; in every database this succeeds for one worker only. While it works, a worker sends a
heartbeat every few seconds. A worker is dead if its process has ended or its heartbeat stops; its
unit is then free. If it was alive after all, it finds that the number of attempts has changed, and
its result is refused. (Only this file imports sqlalchemy.)

    open -> running -> done
               |  \-> failed   (tried again by the next command)
               \---> open      (given back, or its worker died)
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import sqlalchemy as sql

OPEN, RUNNING, DONE, FAILED = "open", "running", "done", "failed"
TRIES = 5
BEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""A worker that has sent no heartbeat for this long counts as dead."""
_metadata = sql.MetaData()
_studies = sql.Table(
    "weiss_studies",
    _metadata,
    sql.Column("study", sql.String(200), primary_key=True),
    sql.Column("id", sql.String(40), nullable=False),
    sql.Column("plan", sql.Text, nullable=False),
)
_units = sql.Table(
    "weiss_units",
    _metadata,
    sql.Column("study", sql.String(200), primary_key=True),
    sql.Column("unit", sql.String(400), primary_key=True),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("attempts", sql.Integer, nullable=False),
    sql.Column("worker", sql.Text, nullable=False),
    sql.Column("heard", sql.BigInteger, nullable=False),
    sql.Column("result", sql.Text, nullable=False),
)


@dataclass(frozen=True)
class Worker:
    """A process, described so that other processes can see whether it lives.

    Attributes:
        place: the machine and the namespace in which its process id is valid.
        process: its process id.
        since: when it started, since ids are used again; on Linux in ticks since the machine
            started, since clocks may be set.
    """

    place: str
    process: int
    since: float

    @classmethod
    def this(cls) -> "Worker":
        """Return this process."""
        return cls(_place(), os.getpid(), _start_of(os.getpid()))

    def is_gone(self) -> bool:
        """Return whether it has certainly ended; False on other machines."""
        if self.place != _place():
            return False
        try:
            is_same = abs(_start_of(self.process) - self.since) < 1
            return not is_same or _is_dead(psutil.Process(self.process))
        except psutil.NoSuchProcess:
            return True

    def text(self) -> str:
        """Return it as a row stores it."""
        return json.dumps([self.place, self.process, self.since])


def _is_dead(process: psutil.Process) -> bool:
    """Return whether a process has ended, though its parent has not waited for it yet.

    The first thread of a killed process may end a tenth of a second before the others; until then
    the process holds its locks.
    """
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


def _place() -> str:
    """Return the machine's name, its boot id, and the namespace of its process ids.

    Copied machines share a name; containers of one machine differ in the namespace alone.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(process: int) -> float:
    """Return when a process started, or raise psutil.NoSuchProcess."""
    try:
        # The name, in brackets, may contain anything; numbers follow it.
        numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return float(numbers[19])
    except (FileNotFoundError, ProcessLookupError) as error:
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(process) from error
        return float(psutil.Process(process).create_time())  # not Linux


@dataclass(frozen=True)
class Claim:
    """A unit that this worker holds.

    Attributes:
        unit: its key.
        attempt: how often it has been claimed, this time included.
    """

    unit: str
    attempt: int


@dataclass(frozen=True)
class Row:
    """The row of a unit."""

    state: str
    attempts: int
    worker: str
    heard: int

    def is_free(self, now: int) -> bool:
        """Return whether no worker holds it, or its worker died."""
        if self.state != RUNNING:
            return self.state == OPEN
        return now - self.heard > SILENT_SECONDS or Worker(*json.loads(self.worker)).is_gone()


class Ledger:
    """The units of one study.

    Args:
        address: ``sqlite:///FILE``, a file, or ``postgresql://USER:PASSWORD@HOST/DATABASE``.
        study: the name of the study in it.
        timeout: seconds to wait for a database that another program has locked.
    """

    def __init__(self, address: str, study: str, *, timeout: float = 60.0) -> None:
        self.study, self.worker = study, Worker.this()
        self.address = _address(address)
        self._results: dict[str, dict[str, Any]] = {}
        options: dict[str, Any] = {"poolclass": sql.NullPool}
        if self.address.startswith("sqlite"):
            options["connect_args"] = {"timeout": timeout}
        else:
            options["connect_args"] = {"connect_timeout": max(int(timeout), 2)}
        try:
            self._engine = sql.create_engine(self.address, **options)
        except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError) as error:
            raise ValueError(
                f"--storage must be a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE; got "
                f"{_hidden(address)!r}: {error}."
            ) from None
        except ImportError as error:
            raise ImportError(
                f"a storage in PostgreSQL needs its driver: {error}. Install: pip install "
                "'weiss[postgres]'"
            ) from None
        try:
            _create_tables(self._engine)
        except sql.exc.DBAPIError as error:
            raise StorageError(_explained(self.address, str(error.orig))) from error

    def register(self, identity: str, plan: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Register the study unless it exists; return its identity and plan."""
        text = json.dumps(plan)
        row = {"study": self.study, "id": identity, "plan": text}
        try:
            with self._transaction() as connection:
                connection.execute(_studies.insert().values(**row))
        except sql.exc.IntegrityError:
            found = self.registered()
            assert found is not None
            return found
        return identity, plan

    def registered(self) -> tuple[str, dict[str, Any]] | None:
        """Return identity and plan of the study; None if no study has this name."""
        query = sql.select(_studies.c.id, _studies.c.plan).where(_studies.c.study == self.study)
        with self._transaction() as connection:
            found = connection.execute(query).first()
        return None if found is None else (found[0], json.loads(found[1]))

    def change_plan(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Replace the plan of the study; False if it is no longer ``old``."""
        change = (
            _studies.update()
            .where(_studies.c.study == self.study, _studies.c.plan == json.dumps(old))
            .values(plan=json.dumps(new))
        )
        with self._transaction() as connection:
            return bool(connection.execute(change).rowcount == 1)

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the results of all finished units; each is read from the database once."""
        here = _units.c.study == self.study
        done = sql.select(_units.c.unit).where(here, _units.c.state == DONE)
        with self._transaction() as connection:
            keys = set(connection.execute(done).scalars())
            new = sorted(keys - set(self._results))
            for start in range(0, len(new), 500):
                some = sql.select(_units.c.unit, _units.c.result).where(
                    here, _units.c.unit.in_(new[start : start + 500])
                )
                for key, text in connection.execute(some):
                    self._results[key] = json.loads(text)
        self._results = {key: self._results[key] for key in self._results if key in keys}
        return dict(self._results)

    def failures(self) -> dict[str, str]:
        """Return why each failed unit failed."""
        query = sql.select(_units.c.unit, _units.c.result).where(
            _units.c.study == self.study, _units.c.state == FAILED
        )
        with self._transaction() as connection:
            return {key: json.loads(text)["failed"] for key, text in connection.execute(query)}

    def attempts(self) -> dict[str, int]:
        """Return how often each unit was claimed."""
        return {key: row.attempts for key, row in self._rows()[0].items()}

    def claim(self, keys: Sequence[str]) -> Claim | None:
        """Claim the first of some units that no worker holds; None if there is none."""
        rows, now = self._rows()
        for key in keys:
            row = rows.get(key)
            if row is None:
                claim = Claim(key, 1)
                if self._inserted(claim):
                    return claim
            elif row.is_free(now):
                claim = Claim(key, row.attempts + 1)
                if self._raised(claim):
                    return claim
        return None

    def all_failed(self, keys: Sequence[str]) -> bool:
        """Return whether each of some units has failed."""
        rows, _ = self._rows()
        return all(key in rows and rows[key].state == FAILED for key in keys)

    def is_quiet(self) -> bool:
        """Return whether no living worker holds a unit."""
        rows, now = self._rows()
        return all(row.state != RUNNING or row.is_free(now) for row in rows.values())

    def beat(self, claim: Claim) -> bool:
        """Send a heartbeat; return whether the claim still holds."""
        return self._update(claim, {})

    def finish(self, claim: Claim, result: dict[str, Any]) -> bool:
        """Store a result; False if another worker holds the unit by now."""
        return self._update(claim, {"state": DONE, "result": json.dumps(result)})

    def fail(self, claim: Claim, why: str) -> bool:
        """Store that a unit failed."""
        return self._update(claim, {"state": FAILED, "result": json.dumps({"failed": why})})

    def give_back(self, claim: Claim) -> bool:
        """Release a unit for other workers."""
        return self._update(claim, {"state": OPEN})

    def forgive(self) -> None:
        """Open every failed unit again."""
        with self._transaction() as connection:
            connection.execute(
                _units.update()
                .where(_units.c.study == self.study, _units.c.state == FAILED)
                .values(state=OPEN)
            )

    def forget(self, key: str) -> None:
        """Remove a unit, so that it is done again."""
        with self._transaction() as connection:
            connection.execute(
                _units.delete().where(_units.c.study == self.study, _units.c.unit == key)
            )
        self._results.pop(key, None)

    def _rows(self) -> tuple[dict[str, Row], int]:
        """Return the row of every unit, and the time of the database's clock."""
        columns = (_units.c.unit, _units.c.state, _units.c.attempts, _units.c.worker)
        query = sql.select(*columns, _units.c.heard).where(_units.c.study == self.study)
        with self._transaction() as connection:
            now = int(connection.execute(sql.select(self._now())).scalar_one())
            return {row[0]: Row(*row[1:]) for row in connection.execute(query)}, now

    def _inserted(self, claim: Claim) -> bool:
        row = {"study": self.study, "unit": claim.unit, "state": RUNNING, "attempts": 1}
        row |= {"worker": self.worker.text(), "heard": self._now(), "result": "{}"}
        try:
            with self._transaction() as connection:
                connection.execute(_units.insert().values(**row))
        except sql.exc.IntegrityError:
            return False  # another worker was faster
        return True

    def _raised(self, claim: Claim) -> bool:
        change = (
            _units.update()
            .where(
                _units.c.study == self.study,
                _units.c.unit == claim.unit,
                _units.c.attempts == claim.attempt - 1,
                _units.c.state.in_((OPEN, RUNNING)),
            )
            .values(
                state=RUNNING,
                attempts=claim.attempt,
                worker=self.worker.text(),
                heard=self._now(),
            )
        )
        with self._transaction() as connection:
            return bool(connection.execute(change).rowcount == 1)

    def _update(self, claim: Claim, values: dict[str, Any]) -> bool:
        change = (
            _units.update()
            .where(
                _units.c.study == self.study,
                _units.c.unit == claim.unit,
                _units.c.attempts == claim.attempt,
                _units.c.state == RUNNING,
            )
            .values(heard=self._now(), **values)
        )
        with self._transaction() as connection:
            return bool(connection.execute(change).rowcount == 1)

    def _now(self) -> Any:
        """Return the database's time in seconds: clocks of machines are not compared."""
        if self.address.startswith("sqlite"):
            return sql.cast(sql.func.strftime("%s", "now"), sql.BigInteger)
        return sql.cast(sql.extract("epoch", sql.func.clock_timestamp()), sql.BigInteger)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sql.exc.IntegrityError:
            raise  # another worker has inserted the row
        except sql.exc.DBAPIError as error:
            raise StorageError(_explained(self.address, str(error.orig))) from error


class StorageError(OSError):
    """The database cannot be used, now or at all."""


def _create_tables(engine: Any) -> None:
    """Create the tables, unless they are there."""
    for _ in range(TRIES):
        try:
            with engine.begin() as connection:
                known = sql.inspect(connection).get_table_names()
                for table in _metadata.sorted_tables:
                    if table.name not in known:
                        connection.execute(sql.schema.CreateTable(table))
            return
        except (sql.exc.IntegrityError, sql.exc.ProgrammingError, sql.exc.OperationalError):
            # Another worker may have created them at the same moment; if not, try again.
            with engine.begin() as connection:
                known = sql.inspect(connection).get_table_names()
            if {table.name for table in _metadata.sorted_tables} <= set(known):
                return
            time.sleep(0.1)
    raise ValueError(
        f"the storage must allow to create the tables {', '.join(_metadata.tables)}; it does not. "
        "Check the rights of the user."
    )


def _address(given: str) -> str:
    if given.startswith("postgresql://"):
        return given.replace("postgresql://", "postgresql+psycopg://", 1)
    if given.startswith("postgres://"):
        return given.replace("postgres://", "postgresql+psycopg://", 1)
    if "://" in given:
        return given
    path = Path(given)
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def _hidden(address: str) -> str:
    """Return an address without its password."""
    try:
        return sql.make_url(address).render_as_string(hide_password=True)
    except sql.exc.ArgumentError:
        return address


def _explained(address: str, said: str) -> str:
    said = " ".join(said.split())
    if "locked" in said:
        remedy = "Another program has locked it: end that one or wait, and start again."
    elif "not a database" in said:
        remedy = "Name another file, or move this one away."
    elif address.startswith("sqlite"):
        remedy = "Check that its folder exists and can be written to."
    else:
        remedy = "Check that the server runs and that address, user and password are right."
    where = _hidden(address)
    return f"the storage must be a usable database; {where} fails with: {said}. {remedy}"


class Heartbeat:
    """Sends a heartbeat every few seconds while a worker does a unit.

    Args:
        beat: sends it; returns whether this worker still holds the unit.
        lost: called once, from another thread, when another worker holds the unit.
    """

    def __init__(self, beat: Callable[[], bool], lost: Callable[[], None]) -> None:
        self._beat, self._lost = beat, lost
        self.is_lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Heartbeat":
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                holds = self._beat()
            except OSError:
                continue  # a database may not answer for a moment
            if not holds and not self._over.is_set():
                self.is_lost = True
                self._lost()
                return
