"""Connecting to a Ray cluster that runs; none is started here, and ray is an extra."""

import logging
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weiss._base import checks

ADDRESS = re.compile(r"auto|ray://[^/\s]+:\d+")
NEEDS = ("gpus", "cpus", "memory")
CONNECT_SECONDS = 10.0
"""For a cluster to answer."""


def check_address(address: str) -> None:
    """Refuse an address that cannot be one of a cluster, before anything is connected."""
    if not ADDRESS.fullmatch(address):
        raise ValueError(
            f"--cluster must be auto or ray://HOST:PORT, a cluster that runs; got {address!r}."
        )


def check_needs(needs: Mapping[str, float], owner: str) -> None:
    """Refuse needs that are not numbers of `NEEDS`; ``owner`` is who has them, for messages."""
    for name, value in needs.items():
        checks.one_of("--needs", name, NEEDS, owner)
        checks.not_negative(f"--needs {name}", value, owner)


def slots(total: Mapping[str, float], options: Mapping[str, float]) -> int:
    """Return how many tasks with these options a cluster with these resources does at a time.

    Example:
        >>> slots({"CPU": 8.0, "GPU": 2.0}, {"num_cpus": 2, "num_gpus": 0.5})
        4
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    shares = [total.get(names[name], 0) / each for name, each in options.items() if each]
    return int(min(shares, default=total.get("CPU", 1)))


def connect(address: str) -> tuple[Any, bool]:
    """Return ray, connected to a cluster, and whether this call has connected it.

    A connection that the caller has already is used.

    Raises:
        ImportError: ray is not installed.
        ValueError: no cluster answers there.
    """
    check_address(address)
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"--cluster needs Ray: {error}. Install: pip install 'weiss[ray]'"
        ) from None
    if ray.is_initialized():
        return ray, False
    try:
        if address != "auto":  # Ray itself would try for half a minute
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.WARNING)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--cluster must be a Ray cluster that runs and can be reached; {address} is not: "
            f"{error} Start one with `ray start`, or leave --cluster out."
        ) from error
    return ray, True


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Give ray, connected to a cluster, and disconnect afterwards; see `connect`."""
    ray, is_ours = connect(address)
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()
