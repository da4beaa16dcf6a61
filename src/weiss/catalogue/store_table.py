"""The stores that an index can have: a new one is a file with its class, and an entry here."""

import re

from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.milvus_store import MilvusStore
from weiss.catalogue.stores import VectorStore

STORES: tuple[type[VectorStore], ...] = (FaissStore, MilvusStore)


def store_at(address: object) -> type[VectorStore] | None:
    """Return the kind of store that has addresses like this one; None if there is none."""
    kinds = (kind for kind in STORES if re.fullmatch(kind.pattern, str(address)))
    return next(kinds, None)
