"""A small web server on this machine that can be told to misbehave."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """One file on a server, how the server behaves, and what it was asked.

    ``cuts`` and ``statuses`` are used up from the front, one a request: after how many bytes the
    connection is cut, and an error to answer with (0 for none).
    """

    body: bytes
    name: str = "file.bin"
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    if_range: bool = True
    chunked: bool = False
    start_error: int = 0
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def first_bytes(self) -> list[int]:
        """The first byte each request asked for."""
        ranges = [re.match(r"bytes=(\d+)-", asked.get("Range", "")) for asked in self.asked]
        return [int(found[1]) if found else 0 for found in ranges]


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/{site.name}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            site.asked.append(dict(self.headers))
            status = site.statuses.pop(0) if site.statuses else 0
            if status or self.path != f"/{site.name}":
                self.send_error(status or 404)
                return
            start, total = self.first_byte(), len(site.body)
            if start and start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            rest = site.body[start:]
            self.send_response(206 if start else 200)
            if start:
                first = start + site.start_error
                self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
            if site.etag:
                self.send_header("ETag", site.etag)
            if site.modified:
                self.send_header("Last-Modified", site.modified)
            if site.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            sent = rest[: site.cuts.pop(0)] if site.cuts else rest
            if site.chunked:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent))
                if len(sent) == len(rest):
                    self.wfile.write(b"0\r\n\r\n")
            else:
                self.wfile.write(sent)

        def first_byte(self) -> int:
            found = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            changed = condition not in (None, site.etag, site.modified)
            if not found or not site.ranges or (site.if_range and changed):
                return 0
            return int(found[1])

    return Handler
