"""A catalogue served in a thread or a process, and requests to it as they go over the wire."""

import http.client
import json
import re
import socket
import sys
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass

import uvicorn
from tiny import begin, wait_until

from weiss.server import make_app
from weiss.server.launch import bind, settings
from weiss.server.limits import LOOPBACK

BOUNDARY = "a-line-that-no-picture-has"
TOKEN = "a-long-secret-of-the-shop"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CODE = "import sys; from weiss.server import serve; serve(sys.argv[1], port=0, device='cpu')"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def detail(self):
        return self.json["detail"]


@dataclass
class Site:
    """Where a server listens."""

    port: int
    host: str = "127.0.0.1"

    @property
    def address(self):
        return f"http://{self.host}:{self.port}"

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def ask(self, method, path, body=None, headers=None):
        named = {key.replace("_", "-"): value for key, value in (headers or {}).items()}
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as line:
            line.request(method, path, body, named)
            answer = line.getresponse()
            content = answer.read()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)

    def search(self, content, path="/search", name="photo.png", field="file", **headers):
        return self.post(form(content, name, field), path, **headers)

    def post(self, body, path="/search", **headers):
        """Send a form as it is."""
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        return self.ask("POST", path, body, {"Content-Type": kind, **headers})

    def wait_for(self, *counts):
        """Wait until the metrics say so."""
        wait_until(lambda: set(counts) <= set(self.get("/metrics").body.decode().splitlines()))

    def line(self):
        """A bare connection, for what no decent client sends."""
        return closing(socket.create_connection((self.host, self.port), timeout=60))


def form(content, name="photo.png", field="file"):
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
    head += "Content-Type: image/png\r\n\r\n"
    return head.encode("latin-1") + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def upload_head(length, host="localhost"):
    """The first lines of an upload that says to be so long; chunked if it does not say."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    return f"POST /search HTTP/1.1\r\nHost: {host}\r\n{kind}\r\n{size}\r\n\r\n".encode()


def read_answer(line):
    """The answer on a bare connection, until it is closed or whole."""
    answer = http.client.HTTPResponse(line, method="POST")
    answer.begin()
    return Answer(answer.status, dict(answer.getheaders()), answer.read())


@contextmanager
def serving(
    catalogue,
    limits=None,
    *,
    hosts=LOOPBACK,
    allowed=(),
    token=None,
    change=lambda app: None,
    **options,
):
    """Serve a catalogue; yield its site."""
    app = make_app(catalogue, limits, hosts=hosts, allowed=allowed, token=token, **options)
    change(app)
    with bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(settings(app, limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        try:
            yield Site(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


def start(index, code=CODE):
    """Serve an index in a process of its own; return it, what it printed, and its site."""
    process = begin([sys.executable, "-c", code, str(index)])
    said = ""
    while not (found := re.search(r"http://(\S+):(\d+) in a browser. Ctrl-C stops it\.", said)):
        line = process.stdout.readline().decode()
        assert line, process.stderr.read().decode()
        said += line
    return process, said, Site(int(found[2]), found[1])


def everything(site: Site) -> list[str]:
    """The addresses of all that can be looked at."""
    described = site.get("/openapi.json").json["paths"]
    paths = [path.replace("{id}", "0") for path, methods in described.items() if "get" in methods]
    return [*paths, "/", "/openapi.json", "/page/script.js"]
