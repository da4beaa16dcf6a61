"""Units are claimed by one worker at a time, whatever happens to workers, in every database."""

import sqlite3
import subprocess
import sys
import threading
import uuid

import pytest
from tiny import wait_until

from weiss.comparing import ledger as ledgers
from weiss.comparing.ledger import Heartbeat, Ledger, StorageError, Worker


@pytest.fixture
def ledger(storage):
    return Ledger(storage, f"study-{uuid.uuid4().hex}")


def another(ledger, **worker):
    """The same ledger in the hands of another worker: this process if nothing is said."""
    other = Ledger(ledger.address, ledger.study)
    if worker:
        other.worker = Worker(**({"place": "another machine", "process": 1, "since": 0.0} | worker))
    return other


def test_a_unit_is_claimed_once(ledger):
    claim = ledger.claim(["a", "b"])
    assert (claim.unit, claim.attempt) == ("a", 1)
    assert another(ledger).claim(["a", "b"]).unit == "b"
    assert ledger.claim(["a", "b"]) is None


def test_a_finished_unit_is_not_claimed_again_and_its_result_is_seen_by_all(ledger):
    claim = ledger.claim(["a"])
    assert ledger.finish(claim, {"map_at_r": 0.25})
    assert another(ledger).results() == {"a": {"map_at_r": 0.25}}
    assert another(ledger).claim(["a"]) is None


def test_of_many_that_reach_for_a_unit_at_once_one_gets_it(ledger, at_once):
    keys = [f"unit-{number}" for number in range(12)]

    def reach(own):
        return list(iter(lambda: own.claim(keys), None))

    taken = at_once(reach, [another(ledger) for _ in range(6)])
    assert sorted(claim.unit for claims in taken for claim in claims) == sorted(keys)


def test_what_is_given_back_or_forgiven_can_be_claimed_again(ledger):
    claim = ledger.claim(["a"])
    assert ledger.give_back(claim)
    claim = another(ledger).claim(["a"])
    assert claim.attempt == 2
    assert ledger.fail(claim, "no luck")
    assert ledger.failures() == {"a": "no luck"}
    assert ledger.claim(["a"]) is None
    assert ledger.all_failed(["a"])
    ledger.forgive()
    assert ledger.failures() == {}
    assert ledger.claim(["a"]).attempt == 3


def test_a_worker_whose_process_is_gone_has_given_its_unit_back(ledger):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        since = ledgers._start_of(process.pid)
        other = another(ledger, place=Worker.this().place, process=process.pid, since=since)
        assert other.claim(["a"])
        assert ledger.claim(["a"]) is None
        process.kill()
    assert ledger.claim(["a"]).attempt == 2  # at once: nobody waits for its silence


def test_the_number_of_a_dead_process_in_use_again_does_not_keep_its_unit(ledger):
    here = Worker.this()
    other = another(ledger, place=here.place, process=here.process, since=here.since - 3600)
    assert other.claim(["a"])
    assert ledger.claim(["a"]).attempt == 2


def test_a_worker_on_another_machine_is_believed_until_it_is_silent_too_long(ledger, monkeypatch):
    other = another(ledger, process=1)
    claim = other.claim(["a"])
    assert ledger.claim(["a"]) is None
    monkeypatch.setattr(ledgers, "SILENT_SECONDS", -1.0)
    taken = ledger.claim(["a"])
    assert taken.attempt == 2
    # It was not dead after all: its word no longer counts.
    assert not other.beat(claim)
    assert not other.finish(claim, {"map_at_r": 0.0})
    assert not other.give_back(claim)
    assert ledger.finish(taken, {"map_at_r": 1.0})
    assert ledger.results() == {"a": {"map_at_r": 1.0}}


def test_a_pulse_keeps_a_unit_and_tells_when_it_is_lost(ledger, monkeypatch):
    monkeypatch.setattr(ledgers, "BEAT_SECONDS", 0.05)
    other, lost = another(ledger, process=1), threading.Event()
    claim = other.claim(["a"])
    with Heartbeat(lambda: other.beat(claim), lost.set) as pulse:
        assert not lost.wait(0.2)
        with monkeypatch.context() as patch:
            patch.setattr(ledgers, "SILENT_SECONDS", -1.0)
            assert ledger.claim(["a"])
        assert lost.wait(5)
        assert pulse.is_lost


def test_a_pulse_outlives_a_storage_that_is_away_for_a_moment(monkeypatch):
    monkeypatch.setattr(ledgers, "BEAT_SECONDS", 0.01)
    answers, lost = iter([OSError(), OSError(), True, False]), threading.Event()

    def tell():
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with Heartbeat(tell, lost.set):
        assert lost.wait(5)


def test_studies_in_one_storage_do_not_meet(ledger):
    other = Ledger(ledger.address, ledger.study + "-other")
    assert ledger.claim(["a"])
    assert other.claim(["a"]).attempt == 1
    assert ledger.register("one", {"kind": "x"}) == ("one", {"kind": "x"})
    assert other.register("two", {"kind": "y"}) == ("two", {"kind": "y"})
    assert ledger.register("three", {"kind": "z"}) == ("one", {"kind": "x"})


def test_a_locked_storage_is_named_and_nothing_is_lost(tmp_path):
    path = tmp_path / "ledger.sqlite3"
    claim = Ledger(str(path), "s").claim(["a"])
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="locked.*Another program has locked it"):
        Ledger(str(path), "s", timeout=0.1)
    holder.rollback()
    assert Ledger(str(path), "s").finish(claim, {})


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to be looked at " * 20)
    with pytest.raises(StorageError, match="not a database.*Name another file"):
        Ledger(str(path), "s")


@pytest.mark.parametrize("address", ["nosuch://x/y", "postgresql://"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises((ValueError, StorageError), match="storage|server"):
        Ledger(address, "s", timeout=2)


def test_a_server_that_does_not_answer_is_named_without_its_password():
    with pytest.raises(StorageError, match="server runs") as caught:
        Ledger("postgresql://me:secret@127.0.0.1:9/none", "s", timeout=2)
    assert "secret" not in str(caught.value)


def test_results_are_seen_as_they_come_and_go(ledger):
    for number, key in enumerate("abc", 1):
        ledger.finish(ledger.claim([key]), {"key": key})
        assert ledger.results()[key] == {"key": key}
        assert len(ledger.results()) == number
    another(ledger).forget("b")
    assert set(ledger.results()) == {"a", "c"}


def test_several_that_begin_at_once_on_a_new_storage_agree_on_one_study(storage, at_once):
    import sqlalchemy as sql

    engine = sql.create_engine(ledgers._address(storage), poolclass=sql.NullPool)
    with engine.begin() as connection:
        for name in ("weiss_units", "weiss_studies"):
            connection.execute(sql.text(f"DROP TABLE IF EXISTS {name}"))
    found = at_once(lambda n: Ledger(storage, "s").register(str(n), {"kind": "x"})[0], range(5))
    assert len(set(found)) == 1


def test_a_clock_that_is_set_does_not_kill_a_worker(monkeypatch):
    import psutil

    here = Worker.this()
    real = psutil.boot_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: real + 100)
    assert not here.is_gone()
    assert Worker(here.place, here.process, here.since + 5000).is_gone()


HOLDS_A_LOCK = """
import fcntl, sys, threading, time
import numpy as np
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
large = np.ones(2**25)  # which takes the system a moment to take back
for _ in range(3):
    threading.Thread(target=time.sleep, args=(100,)).start()
print("ready", flush=True)
time.sleep(100)
"""


def test_a_worker_is_gone_when_its_locks_are(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDS_A_LOCK, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, path.open("w") as file:
        process.stdout.readline()
        worker = Worker(Worker.this().place, process.pid, ledgers._start_of(process.pid))
        assert not worker.is_gone()
        process.kill()
        wait_until(worker.is_gone)  # before anybody has waited for the process
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_plan_changes_only_from_what_it_was(ledger):
    ledger.register("one", {"n": 1})
    assert ledger.change_plan({"n": 1}, {"n": 2})
    assert not ledger.change_plan({"n": 1}, {"n": 3})
    assert ledger.registered() == ("one", {"n": 2})


def test_a_ledger_is_quiet_when_nobody_who_lives_works(ledger):
    assert ledger.is_quiet()
    claim = another(ledger, process=1).claim(["a"])
    assert not ledger.is_quiet()
    another(ledger).finish(claim, {})
    assert ledger.is_quiet()
