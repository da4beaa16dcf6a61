"""The stores that an index can have: a new one is a file with its class, and an entry here."""

import re

from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.milvus_store import MilvusStore
from weiss.catalogue.stores import VectorStore

STORES: tuple[type[VectorStore], ...] = (FaissStore, MilvusStore)


def store_at(address: str) -> type[VectorStore]:
    """Return the kind of store that has addresses like this one; ValueError if there is none."""
    for kind in STORES:
        if re.fullmatch(kind.pattern, address):
            return kind
    raise ValueError(
        f"--store must be {' or '.join(each.form for each in STORES)}; got {address!r}. For "
        f"example: {', '.join(each.example for each in STORES)}."
    )
