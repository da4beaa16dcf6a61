"""What the attacks share: damage to bytes, commands in this process, and counts of what was tried.

Draws depend on `SEED` and on the name of an attack alone. Names and times in files differ from run
to run, so the bytes that a draw hits do too; a failure names file and offset.
"""

import hashlib
import json
import os
import random
import re
import signal
import sys
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass

import typed

SEED = 20
COUNTS = {}
"""For each attack how often each outcome came; printed at the end (see conftest)."""
OURS = re.compile(r"\b(must|is damaged|cannot be used|is not the one)\b")
"""Words of our messages: one of them is in every refusal, and in few messages of libraries."""
MOST_SECONDS = 60
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def draws(name):
    return random.Random(f"{SEED} {name}")


def count(attack, outcome, number=1):
    COUNTS.setdefault(attack, Counter())[outcome] += number


class Hung(BaseException):
    """A command takes longer than `MOST_SECONDS`; no `except Exception` swallows it."""


@contextmanager
def no_hang():
    def ring(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Outcome:
    """What a command gave: its answer, or why it refused, or how it broke."""

    kind: str
    answer: object = None
    words: str = ""

    def against(self, truth):
        """Return "same" or "refused"; None for what must not happen."""
        if self.kind == "refused" and OURS.search(self.words) and "Traceback" not in self.words:
            return "refused"
        return "same" if self.kind == "answer" and self.answer == truth else None

    def whole(self):
        """Return the answer, where nothing is damaged: without it an attack would prove nothing."""
        assert self.kind == "answer", str(self)
        return self.answer

    def __str__(self):
        return f"{self.kind}: {self.words or repr(self.answer)[:300]}"


def called(function, *given, refusals=(ValueError, OSError)):
    """Call a function of the package; `refusals` are what it may raise."""
    try:
        with no_hang(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome("answer", function(*given))
    except refusals as error:
        return Outcome("refused", words=f"{type(error).__name__}: {error}")
    except (Exception, Hung) as error:
        return Outcome("broke", words=f"{type(error).__name__}: {error}")


def command(*words):
    """Run the command line in this process, which is a hundred times faster than in its own."""
    try:
        with no_hang(), warnings.catch_warnings():
            warnings.simplefilter("default")
            return outcome_of(typed.weiss(*words))
    except (Exception, Hung) as error:
        return Outcome("broke", words=f"{type(error).__name__}: {error}")


def outcome_of(done):
    """Return the outcome of a command that has ended, in this process or in its own."""
    if done.returncode == 0:
        return Outcome("answer", done.stdout)
    kind = "refused" if done.returncode in (1, 2) else f"exit code {done.returncode}"
    return Outcome(kind, words=" ".join(done.stderr.split()))


def damages(content, name, turns):
    """Yield damage to some bytes: what was done, and what is left of them.

    Of ten turns, seven flip a bit, two cut the end off, and in one a block becomes zeros.
    """
    random = draws(name)
    for turn in turns:
        at = random.randrange(max(len(content), 1))
        changed, kind = bytearray(content), turn % 10
        if kind < 7 and content:
            bit = random.randrange(8)
            changed[at] ^= 1 << bit
            what = f"bit {bit} of byte {at} of {len(content)} flipped"
        elif kind < 9:
            at = (at, 0, len(content) - 1)[turn // 10 % 3] if content else 0
            del changed[at:]
            what = f"cut off after {at} of {len(content)} bytes"
        else:
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
            what = f"64 bytes from {at} of {len(content)} are 0"
        if changed != content:
            yield what, bytes(changed)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and ".lock" not in path.name)


def damaged(folder, name, number):
    """Damage each file of a folder, one after the other; yield the file and what was done to it.

    Text, where most bytes mean something, gets three times the number of damages. When the next
    damage is asked for, the last one is repaired.
    """
    for path in files_of(folder):
        times = 3 * number if path.suffix in (".json", ".toml", ".jsonl") else number
        content = path.read_bytes()
        for what, changed in damages(content, f"{name} {stem(path)}", range(times)):
            put(path, changed)
            yield path, f"{path.relative_to(folder)}, {what}"
            put(path, content)


def everything(folder, **options):
    """All that a catalogue can be asked, as text; not when it was changed."""
    import numpy as np

    from weiss.catalogue import Catalogue

    with Catalogue.open(folder, device="cpu", **options) as catalogue:
        items = catalogue.items_of(None, 0, 10**6)
        content = hashlib.sha256()
        for item in items:
            content.update(catalogue.vector(item.id).tobytes())
            content.update(catalogue.thumbnail(item.id))
        vectors = np.stack([catalogue.vector(item.id) for item in items[::60]])
        found = [[hit.as_dict() for hit in hits] for hits in catalogue.search(vectors, 7)]
        for name, _ in catalogue.classes()[:1]:
            others = catalogue.search(vectors, 3, where=f"class!={name.strip() or '?'}")
            found += [[hit.as_dict() for hit in hits] for hits in others]
        facts = {key: fact for key, fact in catalogue.facts.items() if key != "updated"}
        asked = [[item.as_dict() for item in items], catalogue.classes(), facts, found]
        return json.dumps([asked, content.hexdigest(), repr(catalogue.map())])


def put(path, content):
    """Replace a file by another: one that was mapped into memory must not change there."""
    beside = path.with_name(f"{path.name}.put")
    beside.write_bytes(content)
    os.replace(beside, path)


class Failures:
    """Collects what must not happen, so that one attack reports all of it."""

    def __init__(self, attack):
        self.attack, self.found, self.tried = attack, [], 0

    def judge(self, outcome, truth, where, must_refuse=False, may_change=False):
        """Count an outcome; with ``may_change`` another answer is one too."""
        self.tried += 1
        verdict = outcome.against(truth)
        if verdict is None and may_change and outcome.kind == "answer":
            verdict = "another answer"
        if verdict is None or (must_refuse and verdict != "refused"):
            self.found.append(f"{where}: {outcome}")
            verdict = "failed"
        count(self.attack, verdict)

    def must(self, holds, where):
        self.tried += 1
        count(self.attack, "held" if holds else "failed")
        if not holds:
            self.found.append(where)

    def settle(self):
        """Fail with a message for each kind of failure: the first, and how many are like it."""
        alike = {}
        for line in self.found:
            alike.setdefault(re.sub(r"\d+|[0-9a-f]{8}", "", line)[:60], []).append(line)
        shown = [f"{lines[0]} ({len(lines)} like this)" for lines in alike.values()]
        assert not self.found, (
            f"{self.attack}, seed {SEED}: {len(self.found)} of {self.tried} failed:\n  "
            + "\n  ".join(shown[:20])
        )


def stem(path):
    """The name of a file without the random part: vectors-1b7f09d2.npy is vectors.npy."""
    return re.sub(r"-[0-9a-f]{8}", "", path.name)


def die(folder, at, note):
    """End this process before its ``at``-th change to a file below a folder; count them."""
    seen = 0

    def watch(event, given):
        nonlocal seen
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        changes |= event == "open" and isinstance(given[2], int) and bool(given[2] & WRITES)
        if changes and str(given[0]).startswith(str(folder)):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            descriptor = os.open(note, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"%d" % seen)
            os.close(descriptor)

    sys.addaudithook(watch)


def victim(folder, at, note, words):
    """Run a command in a process of its own that may be killed, or kill itself (see `die`)."""
    import torch

    from weiss.training import results

    torch.set_num_threads(1)
    results.draw = lambda *_: None
    die(folder, at, note)
    outcome = command(*words)
    if outcome.kind != "answer":
        sys.stderr.write(f"{outcome}\n")
    os._exit(0 if outcome.kind == "answer" else 3)
