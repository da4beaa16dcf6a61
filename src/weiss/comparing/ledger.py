r"""Who works on what: a table of units in a database that any number of workers share.

A unit is claimed by inserting its row, or by raising the number of attempts of a row that nobody
holds any more; both succeed for one worker only, whatever the database. While it works a worker
says so every few seconds. One that died, seen by its process being gone or by its silence, has
given its unit back. A worker that was thought dead and was not finds that its claim has been
raised, and its word no longer counts. (sqlalchemy only here.)

    open -> running -> done
               |  \-> failed   (tried again by the next command)
               \---> open      (given back, or its worker died)
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from weiss.comparing.liveness import SILENT_SECONDS, Worker

OPEN, RUNNING, DONE, FAILED = "open", "running", "done", "failed"
TRIES = 5
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
class Claim:
    """A unit in hand.

    Attributes:
        unit: its key.
        attempt: how often it has been claimed, this time included.
    """

    unit: str
    attempt: int


@dataclass(frozen=True)
class Row:
    """What is known of a unit."""

    state: str
    attempts: int
    worker: str
    heard: int

    def is_free(self, now: int) -> bool:
        """Say whether nobody holds it, who held it having died perhaps."""
        if self.state != RUNNING:
            return self.state == OPEN
        return now - self.heard > SILENT_SECONDS or Worker(*json.loads(self.worker)).is_gone()


class Ledger:
    """The units of one study.

    Args:
        address: ``sqlite:///FILE``, a file, or ``postgresql://USER:PASSWORD@HOST/DATABASE``.
        study: the name of the study in it.
        patience: seconds to wait for a database that another program holds.
    """

    def __init__(self, address: str, study: str, *, patience: float = 60.0) -> None:
        self.study, self.worker = study, Worker.this()
        self.address = _address(address)
        self._results: dict[str, dict[str, Any]] = {}
        options: dict[str, Any] = {"poolclass": sql.NullPool}
        if self.address.startswith("sqlite"):
            options["connect_args"] = {"timeout": patience}
        else:
            options["connect_args"] = {"connect_timeout": max(int(patience), 2)}
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

    # The plan

    def register(self, identity: str, plan: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Enter the study, or find it entered: return the identity and plan that it has."""
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
        """Return identity and plan of the study; None if there is none of this name."""
        query = sql.select(_studies.c.id, _studies.c.plan).where(_studies.c.study == self.study)
        with self._transaction() as connection:
            found = connection.execute(query).first()
        return None if found is None else (found[0], json.loads(found[1]))

    def change_plan(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Replace the plan of the study; False if it is another than ``old`` by now."""
        change = (
            _studies.update()
            .where(_studies.c.study == self.study, _studies.c.plan == json.dumps(old))
            .values(plan=json.dumps(new))
        )
        with self._transaction() as connection:
            return bool(connection.execute(change).rowcount == 1)

    # Units

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the results of all units that are done; what was read once is not read again."""
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
        """Take the first of some units that nobody holds; None if all are in other hands."""
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
        """Say whether each of some units has failed: nobody works on one, and nobody will."""
        rows, _ = self._rows()
        return all(key in rows and rows[key].state == FAILED for key in keys)

    def is_quiet(self) -> bool:
        """Say whether nobody who lives works on anything."""
        rows, now = self._rows()
        return all(row.state != RUNNING or row.is_free(now) for row in rows.values())

    def beat(self, claim: Claim) -> bool:
        """Say that this worker lives; return whether the claim still holds."""
        return self._update(claim, {})

    def finish(self, claim: Claim, result: dict[str, Any]) -> bool:
        """Enter a result; False if the claim was lost, and it is somebody else's to give."""
        return self._update(claim, {"state": DONE, "result": json.dumps(result)})

    def fail(self, claim: Claim, why: str) -> bool:
        """Enter that a unit cannot be done."""
        return self._update(claim, {"state": FAILED, "result": json.dumps({"failed": why})})

    def give_back(self, claim: Claim) -> bool:
        """Leave a unit to others."""
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
        """Take a unit out, to be done again."""
        with self._transaction() as connection:
            connection.execute(
                _units.delete().where(_units.c.study == self.study, _units.c.unit == key)
            )
        self._results.pop(key, None)

    # Below

    def _rows(self) -> tuple[dict[str, Row], int]:
        """Return what is known of every unit, and the time by the database's clock."""
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
            return False  # somebody was quicker
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
        """Return the database's own time in seconds, so that no two clocks are compared."""
        if self.address.startswith("sqlite"):
            return sql.cast(sql.func.strftime("%s", "now"), sql.BigInteger)
        return sql.cast(sql.extract("epoch", sql.func.clock_timestamp()), sql.BigInteger)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sql.exc.IntegrityError:
            raise  # which is how a claim is lost
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
            # Of several that begin at once one creates; the others look again, and see why not if
            # that was not it.
            with engine.begin() as connection:
                known = sql.inspect(connection).get_table_names()
            if {table.name for table in _metadata.sorted_tables} <= set(known):
                return
            time.sleep(0.1)
    raise ValueError(
        f"the storage must let {', '.join(_metadata.tables)} be created; it does not. Check the "
        "user's rights."
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
        remedy = "Another program holds it: end that one, or wait and start again; nothing is lost."
    elif "not a database" in said:
        remedy = "Name another file, or move this one away."
    elif address.startswith("sqlite"):
        remedy = "Check that its folder exists and can be written to."
    else:
        remedy = "Check that the server runs and that address, user and password are right."
    where = _hidden(address)
    return f"the storage must be a database that can be used; {where} says: {said}. {remedy}"
