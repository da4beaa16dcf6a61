"""Checks of every request, and headers of every answer.

Requests: the Host header must name this server (against DNS rebinding: a foreign page can point its
own name at 127.0.0.1), an upload must not come from a foreign page, and if the server has a secret,
a request must know it. Answers: headers that make the browser load nothing from elsewhere, and keep
other sites out. An unexpected error is logged and answered without its text. Every request is
counted.
"""

import asyncio
import json
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weiss.server.limits import LOOPBACK
from weiss.server.login import Login
from weiss.server.metrics import Metrics

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=()",
}
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEALTH = "/healthz"
OPEN = frozenset({"/", HEALTH})
"""Addresses that need no secret: the page, which is empty until it has asked for the catalogue (its
files in ``/page/`` are those of this package), and whether the server lives."""
CROWDED = "weiss_crowded"
"""Key in the state of a request: too many connections are open."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024
"""How long, and how much, a refused upload is still read, so that the client gets the answer."""
log = logging.getLogger(__name__)


class Guard:
    """The outermost layer of the application; ``hosts`` and ``allowed`` as for `make_app`.

    ``login`` is None if there is no secret.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        hosts: Collection[str] | None,
        allowed: Collection[str] = (),
        login: Login | None = None,
    ) -> None:
        self._app, self._metrics, self._login = app, metrics, login
        self._allowed = frozenset(name.lower() for name in allowed)
        if hosts is None and allowed:
            hosts = LOOPBACK
        self._hosts = None if hosts is None else {name.lower() for name in hosts} | self._allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        # HEAD is answered like GET; uvicorn leaves out the body.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        start = time.perf_counter()
        try:
            refused = self._refusal(scope)
            if refused is not None:
                await exchange.answer(*refused)
            else:
                await self._app(asked, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            # The server stops, and the time for open requests is over.
            if exchange.status:
                raise
            await exchange.answer(
                503,
                "a request needs a running server; this one is being stopped. Try again later.",
                lingers=False,
            )
        except Exception:
            log.exception("a request failed")
            # The answer has started: let the server close the connection.
            if exchange.status:
                raise
            await exchange.answer(500, "the server had an internal error; see its log. Try again.")
        finally:
            seconds = time.perf_counter() - start
            method = scope["method"] if scope["method"] in (*SAFE, "POST") else "other"
            route = getattr(asked.get("route"), "path", "none")  # the pattern that it matched
            self._metrics.request(method, route, exchange.status or 499, seconds)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and detail for a request that is refused; None for a good one."""
        headers, path = Headers(scope=scope), scope["path"]
        if scope.get("state", {}).get(CROWDED) and path != HEALTH:
            return 503, "a request needs a free connection; all are taken. Try again in a second."
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            return 421, (
                f"the Host header must be one of {', '.join(sorted(self._hosts))}; it is another. "
                "Open the address that weiss serve has printed, or allow it with --allow-host."
            )
        if scope["method"] not in SAFE and self._is_foreign(headers):
            return 403, (
                "an upload must come from the server's own page or from no page; it comes from "
                "another. Open the server's page and send it from there."
            )
        is_open = path in OPEN or path.startswith("/page/")
        if self._login is not None and not is_open and not self._login.accepts(headers):
            return 401, (
                "a request must have the secret of this server; it has none, or another. Send it "
                "as Authorization: Bearer SECRET, or reload the page to log in."
            )
        return None

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a page sends this that is neither of this server nor of its proxy."""
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return True
        origin = headers.get("origin")
        if origin is None:
            return False
        try:
            page = urlsplit(origin).netloc.lower()
        except ValueError:
            return True
        return page != headers.get("host", "").lower() and _name(page) not in self._allowed


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self._is_unread = length != "0" or "transfer-encoding" in headers
        # A client that waits for "100 Continue" sends nothing until `receive` asks for it.
        self._lingers = "expect" not in headers
        self.status = 0

    async def receive(self) -> Message:
        self._lingers = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if self._is_unread:
                headers["Connection"] = "close"
        elif self._is_unread and self._lingers and not message.get("more_body", False):
            # If the connection closed now, a client that still sends would see an error, no answer.
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        """Read the rest of the body for a while, and discard it."""
        left = LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._is_unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))

    async def answer(self, status: int, detail: str, *, lingers: bool = True) -> None:
        self._lingers = self._lingers and lingers
        headers, body = plain_answer(status, detail)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def plain_answer(status: int, detail: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return headers and body of an answer outside of the application."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers += [(b"retry-after", b"1"), (b"connection", b"close")]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer")]
    return headers, body


def _name(host: str) -> str:
    """Return a Host header without its port; [::1] keeps its brackets."""
    end = host.rfind("]") + 1
    return (host[:end] if end else host.partition(":")[0]).lower()
