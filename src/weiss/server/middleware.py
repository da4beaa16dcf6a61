"""What every request passes on its way in and every answer on its way out.

In: the Host header must name this server (a foreign page can point its own name at 127.0.0.1, which
is called DNS rebinding), and what changes or costs something must not come from a foreign page.
Out: headers that tell a browser to load nothing from elsewhere, and to let nobody else look. An
error that nobody foresaw is logged here and answered without its text. Everything is counted.
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
CROWDED = "weiss_crowded"
"""In the state of a request: more connections are open than may be."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024
"""How long, and how much, a refused upload is still read, so that its sender hears the answer."""
log = logging.getLogger(__name__)


class Guard:
    """The outermost layer of the application.

    Args:
        app: what lies below.
        metrics: where to count.
        hosts: names, without ports, that the Host header may give; None for any.
        allowed: further names, also of pages that may send something: those of a proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        hosts: Collection[str] | None,
        allowed: Collection[str] = (),
    ) -> None:
        self._app, self._metrics = app, metrics
        self._allowed = frozenset(name.lower() for name in allowed)
        self._hosts = None if hosts is None else {name.lower() for name in hosts} | self._allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        # Whoever asks for the head alone gets that of the whole; the server leaves out the rest.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        start = time.perf_counter()
        try:
            refused = _refusal(scope, self._hosts, self._allowed)
            if refused is not None:
                await exchange.answer(*refused)
            else:
                await self._app(asked, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            # The server is being stopped and has waited long enough.
            if exchange.status:
                raise
            await exchange.answer(
                503,
                "a request needs a running server; this one is being stopped. Try again later.",
                lingers=False,
            )
        except Exception:
            log.exception("a request failed")
            # Half an answer cannot be taken back: let the server cut the connection.
            if exchange.status:
                raise
            await exchange.answer(500, "the server made a mistake; its log says which. Try again.")
        finally:
            seconds = time.perf_counter() - start
            method = scope["method"] if scope["method"] in (*SAFE, "POST") else "other"
            self._metrics.request(method, _route(asked), exchange.status or 499, seconds)


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self._is_unread = length != "0" or "transfer-encoding" in headers
        # A sender that waits for a word before it sends needs no lingering.
        self._lingers = "expect" not in headers
        self.status = 0

    async def receive(self) -> Message:
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
            # Were the connection closed on a sender in full flow, it would see an error, no answer.
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        """Read on for a while, and throw it away."""
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
    """Return headers and body of a refusal that no route has made."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers += [(b"retry-after", b"1"), (b"connection", b"close")]
    return headers, body


def _refusal(
    scope: Scope, hosts: Collection[str] | None, allowed: Collection[str]
) -> tuple[int, str] | None:
    """Return status and words for a request that must not go further."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if scope.get("state", {}).get(CROWDED):
        return 503, "a request needs a free connection; all are taken. Try again in a second."
    if hosts is not None and _name(host) not in hosts:
        return 421, (
            f"the Host header must be one of {', '.join(sorted(hosts))}; it is another. "
            "Open the address that weiss serve has printed, or name it with --allow-host."
        )
    if scope["method"] in SAFE:
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    foreign = origin is not None and not _is_own(origin, host, allowed)
    if foreign or site not in ("same-origin", "none"):
        return 403, (
            "a request that sends something must come from the server's own page or from no page; "
            "it comes from another. Open the server's page and send it from there."
        )
    return None


def _is_own(origin: str, host: str, allowed: Collection[str]) -> bool:
    """Say whether a page comes from this server, or from the proxy in front of it."""
    try:
        page = urlsplit(origin)
    except ValueError:
        return False
    return page.netloc.lower() == host.lower() or _name(page.netloc) in allowed


def _name(host: str) -> str:
    """Return a Host header without its port; [::1] keeps its brackets."""
    end = host.rfind("]") + 1
    return (host[:end] if end else host.partition(":")[0]).lower()


def _route(scope: Scope) -> str:
    """Return the pattern a request matched: few of them, so that counts stay few."""
    return getattr(scope.get("route"), "path", "none")
