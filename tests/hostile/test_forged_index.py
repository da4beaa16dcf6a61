"""An index that was made to do harm, with checksums that agree: refused, or another answer."""

import hashlib
import json

from hostile.harm import Failures, called, damages, draws, everything, put, stem

from weiss.catalogue.manifest import sealed

VALUES = [None, True, -1, 2**63, 10**400, 1e308, 0.5, "", "../../etc/passwd", "a" * 10**5]
VALUES += ["/etc/passwd", "\0", [], {}, [[[]]], "store-00000000.faiss", "milvus:127.0.0.1:1"]


def leaves(value, path=()):
    """Yield the path of every entry."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))


def forged(index, manifest):
    """Put a manifest with the right checksum."""
    put(index / "index.json", sealed(manifest).encode())


def test_entries_of_index_json_that_are_others(index):
    failures, random = Failures("forged index.json"), draws("forged")
    truth = everything(index)
    whole = json.loads((index / "index.json").read_text())
    del whole["checksum"]
    for path in leaves(whole):
        for value in random.sample(VALUES, 6):
            manifest = json.loads(json.dumps(whole))
            inside = manifest
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = value
            forged(index, manifest)
            where = f"{'.'.join(map(str, path))} is {str(value)[:40]!r}"
            failures.judge(called(everything, index), truth, where, may_change=True)
    failures.settle()


def test_files_that_are_others(index):
    failures, truth = Failures("forged files"), everything(index)
    whole = json.loads((index / "index.json").read_text())
    del whole["checksum"]
    for name in sorted(whole["files"]):
        content = (index / name).read_bytes()
        for what, changed in damages(content, f"forged {stem(index / name)}", 60):
            put(index / name, changed)
            facts = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
            forged(index, whole | {"files": whole["files"] | {name: facts}})
            outcome = called(everything, index)
            failures.judge(outcome, truth, f"{name}, {what}", may_change=True)
        put(index / name, content)
    failures.settle()
