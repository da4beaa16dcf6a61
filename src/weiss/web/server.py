"""The server: an index opened, an address bound, both given to uvicorn (imported only here)."""

import asyncio
import errno
import ipaddress
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weiss.catalogue import Catalogue
from weiss.decoding import usable_cores
from weiss.web.limits import Limits

if TYPE_CHECKING:
    import uvicorn

MAX_CONNECTIONS = 1000
"""Connections that may be open, idle ones too; one more is answered with 503."""
PATIENCE = 5
"""Seconds that searches under way have to finish after Ctrl-C."""


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    device: str = "auto",
    onnx: str | Path | None = None,
) -> None:
    """Serve an index until Ctrl-C.

    Args:
        folder: the index.
        host: the address to listen on. Only programs on this machine reach the default; any other
            address has to be asked for, since there is no login.
        port: where to listen; 0 for any free port.
        limits: what to accept from visitors; `Limits()` if None.
        device: where to embed pictures.
        onnx: embed by this ONNX export of the index's model.

    Raises:
        ValueError: the address cannot be used.
        ImportError: fastapi or uvicorn is missing.
    """
    try:
        import uvicorn

        from weiss.web.app import LOOPBACK, make_app
    except ModuleNotFoundError as error:
        raise ImportError(
            f"fastapi, uvicorn and python-multipart must be installed to serve; {error.name} is "
            'not. Install them: pip install "weiss[serve]".'
        ) from error
    import torch

    # A core for those who read, decode and write. Threads of a network that wait for each other on
    # a core that somebody else needs make it ten times slower, not a little.
    torch.set_num_threads(max(1, usable_cores() - 1))
    with bind(host, port) as listener:
        catalogue = Catalogue.open(folder, device=device, onnx=onnx)
        app = make_app(catalogue, limits, hosts=LOOPBACK if is_loopback(host) else None)
        print(f"Serving {catalogue.name}: {len(catalogue):,} items.")
        print(greeting(host, listener.getsockname()[1]), flush=True)
        # uvicorn finishes what is under way, and passes the signal on.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings(app, limits)).run(sockets=[listener])
        print("\nStopped.")


def settings(app: Any, limits: Limits | None = None) -> "uvicorn.Config":
    """Return how uvicorn is to serve an application.

    Args:
        app: what `make_app` returns.
        limits: how long a visitor may take; `Limits()` if None.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    seconds = (limits or Limits()).seconds

    class Impatient(H11Protocol):
        """A connection that is closed unless it asks for something in time; uvicorn's waits."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._end_if_silent)

        def _end_if_silent(self) -> None:
            if self.cycle is None:
                self.transport.close()

    # What strangers get wrong in a form is told to them, not to whoever looks at the terminal.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )


def greeting(host: str, port: int) -> str:
    """Return where the server is, how to stop it, and a warning if others can reach it.

    Example:
        >>> print(greeting("::1", 8000))
        Open http://[::1]:8000 in a browser. Ctrl-C stops it.
    """
    shown = f"[{host}]" if ":" in host else host
    said = f"Open http://{shown}:{port} in a browser. Ctrl-C stops it."
    if is_loopback(host):
        return said
    return (
        f"{said}\nWarning: {host} can be reached from other machines, and there is no login: "
        "whoever reaches it can look at every item. Leave --host out to keep it private."
    )


def is_loopback(host: str) -> bool:
    """Say whether an address is reached from this machine only.

    Example:
        >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: whoever it names may be anywhere


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that has an address, before anything slow is begun.

    Args:
        host: the address.
        port: 0 for any free one.

    Raises:
        ValueError: another program has it, or it is no address of this machine.
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"port must lie from 0 to 65535; got {port}. The usual one is 8000.")
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle's algorithm off only where a socket says by itself that it is TCP;
        # with it every answer takes 40 ms more.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two that are bound do not notice each other until one listens.
        listener.listen(2048)
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port must be free; another program has {port} on {host}. "
                "Choose another one with --port, or end that program."
            ) from error
        if error.errno == errno.EACCES:
            raise ValueError(
                f"port must be one that this user may open; {port} is not. "
                "Choose one from 1024 on with --port."
            ) from error
        raise ValueError(
            f"host must be an address of this machine; {host!r} is not ({error.strerror}). "
            "Leave --host out, or name one of its addresses."
        ) from error
    return listener
