"""What the bytes of an ONNX file say: its checksum, and whether tensors are in other files.

The bytes are read here and not by the onnx library, which a machine that only searches lacks.
"""

import hashlib
import re

from weiss._base.tensor_files import DIGEST

DIGEST_PLACE = re.compile(rb"\x0a\x0c" + DIGEST.encode() + rb"\x12\x20([0-9a-f]{32})")
"""The checksum in an ONNX file: key and value of its metadata entry, as protobuf encodes them."""
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"}
    | {22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""The messages that lead to tensors, by the numbers of their fields in onnx.proto."""
EXTERNAL = (13, 14)
"""The fields external_data and data_location of a tensor."""
SKIPPED = {1: 8, 5: 4}
"""Bytes of a value of fixed size, by its wire type."""


def digest_of_onnx(content: bytes) -> bytes | None:
    """Return the checksum, 32 hexadecimal digits, of a serialised ONNX model.

    It is computed with zeros in its own place; None if the metadata have no entry `DIGEST`.
    """
    place = DIGEST_PLACE.search(content)
    if place is None:
        return None
    state = hashlib.blake2b(digest_size=16)
    state.update(memoryview(content)[: place.start(1)])
    state.update(b"0" * 32)
    state.update(memoryview(content)[place.end(1) :])
    return state.hexdigest().encode()


def has_external_tensors(content: bytes) -> bool:
    """Return whether a serialised ONNX model keeps the numbers of a tensor in another file.

    Raises:
        ValueError: it is no protobuf message.
    """
    todo = [("model", memoryview(content))]
    while todo:
        kind, message = todo.pop()
        at = 0
        while at < len(message):
            key, at = _varint(message, at)
            field, wire = (key & 0xFFFFFFFF) >> 3, key & 7  # a key has 32 bits
            is_default = wire == 0 and _varint(message, at)[0] == 0  # of data_location: inside
            if kind == "tensor" and field in EXTERNAL and not is_default:
                return True
            if wire == 0:
                at = _varint(message, at)[1]
            elif wire == 2:
                length, at = _varint(message, at)
                if field in INSIDE[kind]:
                    todo.append((INSIDE[kind][field], message[at : at + length]))
                at += length
            elif wire in SKIPPED:
                at += SKIPPED[wire]
            else:
                raise ValueError(f"a field has the wire type {wire}")
        if at > len(message):
            raise ValueError("it ends within a field")
    return False


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    value = 0
    for place in range(at, min(at + 10, len(message))):
        value |= (message[place] & 127) << 7 * (place - at)
        if message[place] < 128:
            return value, place + 1
    raise ValueError("it ends within a number")
