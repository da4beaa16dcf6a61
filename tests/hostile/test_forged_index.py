"""An index that was made to do harm, with checksums that agree: refused, or another answer."""

import hashlib
import json
import os
import sys

import pytest
from hostile.harm import Failures, called, damages, draws, everything, put, stem

from weiss.catalogue.manifest import sealed

VALUES = [None, True, -1, 2**63, 10**400, 1e308, 0.5, "", "../../etc/passwd", "a" * 10**5]
VALUES += ["/etc/passwd", "\0", [], {}, [[[]]], "store-00000000.faiss", "milvus:127.0.0.1:1"]


@pytest.fixture(scope="module")
def opened():
    """The files that Python opens."""
    paths, has_ended = set(), False

    def note(event, given):
        if event == "open" and not has_ended and not isinstance(given[0], int):
            paths.add(os.path.abspath(os.fsdecode(given[0])))

    sys.addaudithook(note)  # which stays until the process ends
    yield paths
    has_ended = True


@pytest.fixture
def look(index, opened):
    """Ask an index for everything: an answer or a refusal, and no file outside of it is opened."""
    truth, libraries = everything(index), (f"{sys.prefix}/", f"{sys.base_prefix}/")

    def ask(failures, where):
        opened.clear()
        failures.judge(called(everything, index), truth, where, may_change=True)
        outside = [path for path in opened if not path.startswith((f"{index}/", *libraries))]
        if outside:
            failures.must(False, f"{where}: it opened {outside}")

    return ask


@pytest.fixture
def whole(index):
    """The entries of index.json but for the checksum."""
    manifest = json.loads((index / "index.json").read_text())
    del manifest["checksum"]
    return manifest


def leaves(value, path=()):
    """Yield the path of every entry."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))


def forge(index, manifest):
    """Put a manifest with the right checksum."""
    put(index / "index.json", sealed(manifest).encode())


def test_entries_of_index_json_that_are_others(index, whole, look):
    failures, random = Failures("forged index.json"), draws("forged")
    for path in leaves(whole):
        for value in random.sample(VALUES, 6):
            manifest = json.loads(json.dumps(whole))
            inside = manifest
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = value
            forge(index, manifest)
            look(failures, f"{'.'.join(map(str, path))} is {str(value)[:40]!r}")
    failures.settle()


def test_files_that_are_others(index, whole, look):
    failures = Failures("forged files")
    for name in sorted(whole["files"]):
        content = (index / name).read_bytes()
        for what, changed in damages(content, f"forged {stem(index / name)}", range(60)):
            put(index / name, changed)
            facts = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
            forge(index, whole | {"files": whole["files"] | {name: facts}})
            look(failures, f"{name}, {what}")
        put(index / name, content)
    failures.settle()
