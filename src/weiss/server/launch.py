"""Open an index, bind an address, and run uvicorn, which is imported only here."""

import asyncio
import errno
import ipaddress
import logging
import os
import re
import socket
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weiss._base.decoding import usable_cores
from weiss.catalogue import Catalogue
from weiss.server.limits import LOOPBACK, Limits

if TYPE_CHECKING:
    import uvicorn

LEAST_READ = 64 * 1024
"""Bytes of an answer that a slow client must read within `Limits.seconds`."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
"""A name or an address in a Host header, without a port."""
log = logging.getLogger(__name__)
SHUTDOWN_SECONDS = 5
"""Seconds that open requests have to finish after Ctrl-C."""


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_hosts: Collection[str] = (),
    token: str | None = None,
    public: bool = False,
    limits: Limits | None = None,
    device: str = "auto",
    onnx: str | Path | None = None,
    trust: bool = False,
    originals: Sequence[str | Path] = (),
) -> None:
    """Serve an index until Ctrl-C. When it changes, the server opens it again.

    Args:
        folder: the index.
        host: the address to listen on. Only programs on this machine reach the default; any other
            needs `token` or `public`.
        port: the port; 0 for any free one.
        allow_hosts: public names of a web server in front of this one, or of this one: the only
            ones that are accepted beside those of this machine.
        token: a secret that every visitor must know, at least 16 characters.
        public: anybody who reaches the address may see every item.
        limits: what to accept; `Limits()` if None.
        device: where to embed pictures.
        onnx: embed with this ONNX export of the index's model.
        trust: as for `weiss.catalogue.Catalogue.open`.
        originals: folders with the photos of the index, to be shown too.

    Raises:
        ValueError: the address cannot be used or is open to others without `token` and `public`,
            or a name, the token or a folder of photos is invalid.
        DamagedIndexError: a file of the index does not match its checksum.
        ImportError: fastapi or uvicorn is missing.
    """
    try:
        import uvicorn

        from weiss.server.app import make_app
        from weiss.server.login import Login
        from weiss.server.originals import checked_folders
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
    if public and token is not None:
        raise ValueError(
            "give one of --token and --public; got both. With a secret the server is not public."
        )
    if token is not None:
        Login(token)  # refuses a bad one before the index is opened, which can take long
    checked_folders(originals)

    def opened() -> Catalogue:
        return Catalogue.open(folder, device=device, onnx=onnx, trust=trust, verify=True)

    with bind(host, port) as listener:
        address, port = listener.getsockname()[:2]
        if not (ipaddress.ip_address(address).is_loopback or public or token is not None):
            raise ValueError(
                f"host must be an address of this machine alone, such as 127.0.0.1; {host} can be "
                "reached by others. Ask them for a secret with --token FILE, or show every item to "
                "anybody with --public."
            )
        catalogue = opened()
        # A server at all addresses does not know its names, unless somebody lists them.
        is_any = ipaddress.ip_address(address).is_unspecified and not allow_hosts
        hosts = None if is_any else own_names(host, address)
        app = make_app(
            catalogue,
            limits,
            hosts=hosts,
            allowed=allow_hosts,
            token=token,
            folder=folder,
            reopen=opened,
            originals=originals,
        )
        noun = "item" if len(catalogue) == 1 else "items"
        print(f"Serving {catalogue.name}: {len(catalogue):,} {noun}.")
        print(greeting(host, port, address, has_login=token is not None), flush=True)
        # uvicorn finishes open requests, and raises the signal again.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings(app, limits)).run(sockets=[listener])
        print("\nStopped.")


def settings(app: Any, limits: Limits | None = None) -> "uvicorn.Config":
    """Return the configuration of uvicorn for an application of `make_app`."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from weiss.server.middleware import CROWDED, HEADERS, plain_answer

    limits = limits or Limits()
    seconds, most = limits.seconds, max_connections(limits.max_connections)
    # So many connections are accepted at a time; only then one can be closed for each of them.
    backlog = max(8, most // 8)

    class TimedProtocol(H11Protocol):
        """A connection that is closed if it waits too long for its client.

        It waits for a whole request, or for the client to read an answer. If there are too many
        connections, the one that has waited longest is closed for a new one.

        uvicorn's own answer (400) gets the form of the application's.
        """

        waiting: ClassVar[dict["TimedProtocol", None]] = {}

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._deadline: asyncio.TimerHandle | None = None
            self._unread = 0
            super().connection_made(transport)
            # An answer counts as read when all of it has left this process.
            transport.set_write_buffer_limits(0)
            if len(self.connections) > most:
                self._make_room()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_clock()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stop_clock()
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_clock()
            self._watch()

        def handle_events(self) -> None:
            # uvicorn copies this state for every request.
            self.app_state = {**self.app_state, CROWDED: len(self.connections) > most}
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
            """Start the clock if the client has to do something, else stop it."""
            is_open = self.cycle is not None and not self.cycle.response_complete
            if is_open and not self.flow.write_paused:
                self._stop_clock()
            elif self._deadline is None and self in self.connections:
                self._unread = self.transport.get_write_buffer_size()
                self._deadline = self.loop.call_later(seconds, self._end_wait)
                self.waiting[self] = None

        def _stop_clock(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
                del self.waiting[self]

        def _end_wait(self) -> None:
            unread = self.transport.get_write_buffer_size()
            if unread and self._unread - unread >= LEAST_READ:
                self._stop_clock()
                self._watch()
            else:
                self._drop()

        def _make_room(self) -> None:
            warn_once(
                f"All {most:,} connections are taken; each new one closes one that waits for its "
                "client. This is logged once. More need a higher limit: ulimit -n, or "
                "Limits(max_connections=...)."
            )
            if self.waiting:
                next(iter(self.waiting))._drop()
            elif len(self.connections) > most + backlog:
                self._drop()

        def _drop(self) -> None:
            """Close the connection now; the system, too, forgets what was not read."""
            self._stop_clock()
            self.connections.discard(self)
            if self.transport.get_write_buffer_size():
                line = self.transport.get_extra_info("socket")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    # Errors in the form of an untrusted upload go to the client, not to the terminal.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger("asyncio").addFilter(_has_descriptor)
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=backlog,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def max_connections(most: int) -> int:
    """Return how many connections may be open: at most half of the free file descriptors."""
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (allowed - len(os.listdir("/dev/fd"))) // 2))


@cache
def warn_once(message: str) -> None:
    """Log a warning, if it was not logged before."""
    log.warning("%s", message)


def _has_descriptor(record: logging.LogRecord) -> bool:
    """Log asyncio's error for a connection without a file descriptor once, and briefly."""
    if not record.getMessage().startswith("socket.accept() out of system resource"):
        return True
    warn_once(
        "No file descriptor is free for a new connection. This is logged once. Raise the limit: "
        "ulimit -n."
    )
    return False


def greeting(host: str, port: int, address: str, *, has_login: bool) -> str:
    """Return the address of the server, how to stop it, and a warning if others can reach it.

    ``address`` is what ``host`` means; ``has_login`` if visitors need a secret.

    Example:
        >>> print(greeting("::1", 8000, "::1", has_login=False))
        Open http://[::1]:8000 in a browser. Ctrl-C stops it.
    """
    line = f"Open http://{_in_url(host)}:{port} in a browser. Ctrl-C stops it."
    if ipaddress.ip_address(address).is_loopback:
        return line
    warning = f"{line}\nWarning: {host} can be reached from other machines, and"
    if has_login:
        return (
            f"{warning} the connection is not encrypted: who sees the network sees the secret. A "
            "web server with TLS helps."
        )
    return (
        f"{warning} there is no login: anybody who reaches it can see every item. Leave --host out "
        "to keep it private."
    )


def own_names(host: str, address: str) -> frozenset[str]:
    """Return the names of a local server in Host headers; ``address`` is what ``host`` means."""
    return LOOPBACK | {_in_url(host).lower(), _in_url(address)}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


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
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Else the system takes megabytes of an answer at a time, and nobody sees whether the
            # client reads it.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LEAST_READ)
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
