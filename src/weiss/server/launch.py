"""Open an index, bind an address, and run uvicorn, which is imported only here."""

import asyncio
import errno
import ipaddress
import logging
import re
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weiss._base.decoding import usable_cores
from weiss.catalogue import Catalogue
from weiss.server.limits import LOOPBACK, Limits

if TYPE_CHECKING:
    import uvicorn

MAX_CONNECTIONS = 1000
"""Open connections, idle ones included; one more is answered with 503."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
"""A name or an address in a Host header, without a port."""
SHUTDOWN_SECONDS = 5
"""Seconds that open requests have to finish after Ctrl-C."""


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_hosts: Collection[str] = (),
    limits: Limits | None = None,
    device: str = "auto",
    onnx: str | Path | None = None,
) -> None:
    """Serve an index until Ctrl-C.

    Args:
        folder: the index.
        host: the address to listen on. Only programs on this machine reach the default; there is no
            login.
        port: the port; 0 for any free one.
        allow_hosts: public names of a web server in front of this one.
        limits: what to accept; `Limits()` if None.
        device: where to embed pictures.
        onnx: embed with this ONNX export of the index's model.

    Raises:
        ValueError: the address cannot be used, or a name is invalid.
        ImportError: fastapi or uvicorn is missing.
    """
    try:
        import uvicorn

        from weiss.server.app import make_app
    except ModuleNotFoundError as error:
        raise ImportError(
            "fastapi, uvicorn, python-multipart and prometheus-client must be installed to serve; "
            f'{error.name} is not. Install them: pip install "weiss[serve]".'
        ) from error
    import torch

    # One core stays free for the event loop and the decoders: with all cores torch's threads would
    # wait for each other, and a forward pass would take ten times as long.
    torch.set_num_threads(max(1, usable_cores() - 1))
    for name in allow_hosts:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"allow_hosts must be names without scheme, port and path; got {name!r}. "
                "For example: catalogue.example.org."
            )
    with bind(host, port) as listener:
        address, port = listener.getsockname()[:2]
        catalogue = Catalogue.open(folder, device=device, onnx=onnx)
        hosts = own_names(host, address) if is_loopback(address) else None
        app = make_app(catalogue, limits, hosts=hosts, allowed=allow_hosts)
        noun = "item" if len(catalogue) == 1 else "items"
        print(f"Serving {catalogue.name}: {len(catalogue):,} {noun}.")
        print(greeting(host, port, address), flush=True)
        # uvicorn finishes open requests, and raises the signal again.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings(app, limits)).run(sockets=[listener])
        print("\nStopped.")


def settings(app: Any, limits: Limits | None = None) -> "uvicorn.Config":
    """Return the configuration of uvicorn for an application of `make_app`."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from weiss.server.middleware import CROWDED, HEADERS, plain_answer

    seconds = (limits or Limits()).seconds

    class TimedProtocol(H11Protocol):
        """A connection that is closed unless a whole request arrives in time.

        uvicorn's own answers (400, too many connections) get the form of the application's.
        """

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._deadline: asyncio.TimerHandle | None = None
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_clock()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # The next request, or a part of it, may have arrived already.
            if self.conn.trailing_data[0]:
                self._watch()

        def handle_events(self) -> None:
            # uvicorn copies this state for every request.
            self.app_state = {**self.app_state, CROWDED: len(self.connections) > MAX_CONNECTIONS}
            super().handle_events()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.close()  # another answer may be half sent
                return
            headers, body = plain_answer(400, "a request must be HTTP; this was not. Send another.")
            app.state.metrics.request("other", "none", 400, 0.0)
            lines = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            lines += [*headers, (b"connection", b"close")]
            head = b"".join(b"%b: %b\r\n" % line for line in lines)
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body)
            self.transport.close()

        def _watch(self) -> None:
            """Start the clock if there is no open request, else stop it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_clock()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def _stop_clock(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    # Errors in the form of an untrusted upload go to the client, not to the terminal.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def greeting(host: str, port: int, address: str | None = None) -> str:
    """Return the address of the server, how to stop it, and a warning if others can reach it.

    ``address`` is the resolved ``host``.

    Example:
        >>> print(greeting("::1", 8000))
        Open http://[::1]:8000 in a browser. Ctrl-C stops it.
    """
    line = f"Open http://{_in_url(host)}:{port} in a browser. Ctrl-C stops it."
    if is_loopback(address or host):
        return line
    return (
        f"{line}\nWarning: {host} can be reached from other machines, and there is no login: "
        "anybody who reaches it can see every item. Leave --host out to keep it private."
    )


def own_names(host: str, address: str) -> frozenset[str]:
    """Return the names of a local server in Host headers; ``address`` is what ``host`` means."""
    return LOOPBACK | {_in_url(host).lower(), _in_url(address)}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Example:
        >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    with suppress(OSError, UnicodeError):
        # Short forms of an address, such as 127.1.
        return ipaddress.IPv4Address(socket.inet_aton(host)).is_loopback
    return False  # a name may be that of any machine


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 means any free one."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port must lie from 0 to 65535; got {port}. The usual one is 8000.")
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle's algorithm, which costs 40 ms an answer, off only for sockets with an
        # explicit TCP protocol.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # A port conflict shows only when the socket listens.
        listener.listen(2048)
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port must be free; another program uses {port} on {host}. "
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
