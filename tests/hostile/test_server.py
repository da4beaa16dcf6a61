"""A real server process under hostile uploads and abuse of HTTP: it lives and answers."""

import http.client
import io
import json
import re
import select
import signal
import socket
import struct
import sys
import time
import zlib
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest
from glyph_catalogue import build, glyph_catalogue, write_photo
from hostile.harm import Failures, command, draws
from PIL import Image
from server.hostile import scanned, tiled
from server.served import BOUNDARY, Site, everything, form, read_answer, upload_head
from tiny import begin, wait_until

SECONDS = 3
"""The time limit of the server under attack; the usual one is 30."""
FILES = 120
"""Open files that it may have."""
CODE = f"""
import resource, sys
from weiss.server import Limits, serve
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
serve(sys.argv[1], port=0, device="cpu", limits=Limits(seconds={SECONDS}))
"""
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SCRIPT = "<script>alert(1)</script>"


class Server:
    """A server process; after each attack it must be as well as before."""

    def __init__(self, index):
        self.process = begin([sys.executable, "-c", CODE, str(index)])
        said = ""
        while "Ctrl-C stops it." not in said:
            line = self.process.stdout.readline().decode()
            assert line, self.process.stderr.read().decode()
            said += line
        self.site = Site(int(re.search(r":(\d+) in a browser", said)[1]))

    def is_well(self):
        with suppress(OSError, http.client.HTTPException), self.site.line() as line:
            line.settimeout(10)
            line.sendall(GET)
            return self.process.poll() is None and read_answer(line).status == 200
        return False

    def connections(self):
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(each.status == psutil.CONN_ESTABLISHED for each in found)

    def memory(self):
        whole = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in [whole, *whole.children(recursive=True)])

    def end(self, failures):
        """Stop it, as Ctrl-C does, and report what must not happen."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=120)
        failures.must(self.process.returncode == 0, f"it ended with {self.process.returncode}")
        failures.must(b"Traceback" not in errors, f"it wrote {errors.decode()[-2000:]}")
        failures.settle()


def make_index(folder):
    """Write an index whose names are scripts."""
    root = folder / f"{SCRIPT.replace('/', '')}"
    for number, name in enumerate(
        ('"><img src=x onerror=alert(1)>', "<i id=7>", "a'b&amp;c", "\u202e")
    ):
        write_photo(root / name / f"<script>alert({number}).jpg", number)
        write_photo(root / name / "javascript:alert(1).jpg", number + 9)
    build(glyph_catalogue() / "run", root, folder / "index")
    return folder / "index"


@pytest.fixture
def server(tmp_path):
    server = Server(make_index(tmp_path))
    yield server
    server.process.kill()


def samples():
    """Pictures of every kind and mode that the server takes, and of one that it does not."""
    noise = Image.effect_noise((61, 47), 80)
    frames = [noise.rotate(angle) for angle in (10, 20)]
    kinds = {
        "JPEG": [noise, noise.convert("RGB"), noise.convert("CMYK")],
        "PNG": [noise, noise.convert("RGBA"), noise.convert("P"), noise.convert("I;16")],
        "WEBP": [noise.convert("RGB"), noise.convert("RGBA")],
        "GIF": [noise.convert("P")],
        "BMP": [noise, noise.convert("1"), noise.convert("RGB")],
        "TIFF": [noise.convert("RGB")],
    }
    for kind, pictures in kinds.items():
        for picture in pictures:
            variants = [{}, {"progressive": True}] if kind == "JPEG" else [{}]
            variants += [{"save_all": True, "append_images": frames}] if kind == "GIF" else []
            for options in variants:
                file = io.BytesIO()
                picture.save(file, kind, **options)
                yield kind, file.getvalue()


def larger(kind, content, random):
    """Let a header say another size; in a PNG with the right checksum."""
    width, height = (random.choice([0, 1, 9_999, 30_000, 65_535]) for _ in range(2))
    changed = bytearray(content)
    if kind == "PNG":
        changed[16:24] = struct.pack(">II", width << random.choice([0, 12]), height)
        changed[29:33] = struct.pack(">I", zlib.crc32(changed[12:29]))
    elif kind == "BMP":
        changed[18:26] = struct.pack("<ii", width, random.choice([-1, 1]) * height)
    elif kind == "GIF":
        changed[6:10] = struct.pack("<HH", width, height)
    elif (at := max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))) > 0:
        changed[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(changed)


def mutated(kind, content, others, random):
    """Return what was done to a picture, and what came of it."""
    how = random.choice(["header", "body", "cut", "size", "splice", "polyglot", "repeat", "insert"])
    changed, at = bytearray(content), random.randrange(len(content))
    if how in ("header", "body"):
        end = min(64, len(changed)) if how == "header" else len(changed)
        for _ in range(random.randint(1, 8)):
            changed[random.randrange(end)] = random.randrange(256)
    elif how == "cut":
        del changed[at:]
    elif how == "size":
        changed = larger(kind, content, random)
    elif how == "splice":
        other = random.choice(others)
        changed[at:] = other[random.randrange(len(other)) :]
    elif how == "polyglot":
        page = f"<html>{SCRIPT}</html>PK\x05\x06".encode() + bytes(18)
        changed = random.choice([page + content, content + page])
    elif how == "repeat":
        changed[at:at] = changed[at : at + 40] * random.randint(2, 500)
    else:
        changed[at:at] = random.randbytes(random.randint(1, 300))
    return how, bytes(changed)


def bombs():
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    for width, height in [(60_000, 60_000), (6_000, 6_000), (1, 30_000)]:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        pixels = chunk(b"IDAT", zlib.compress(bytes(min(3 * width * height, 10**8)), 9))
        text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 9))
        yield "PNG", b"\x89PNG\r\n\x1a\n" + header + text + pixels + chunk(b"IEND", b"")
    yield "JPEG of many scans", scanned(3000, 99)
    yield "JPEG of too many scans", scanned(500, 5000)
    yield "TIFF of one large tile", tiled(20_000)
    yield "nothing", b""
    yield "zeros", bytes(10**6)


def test_hostile_uploads(server):
    failures, random = Failures("uploads"), draws("uploads")
    pictures = list(samples())
    others = [content for _, content in pictures]
    tried = [(kind, "whole", content) for kind, content in pictures]
    tried += [(kind, "bomb", content) for kind, content in bombs()]
    for number in range(900):
        kind, content = pictures[number % len(pictures)]
        tried.append((kind, *mutated(kind, content, others, random)))
    before, line = (
        server.memory(),
        http.client.HTTPConnection("127.0.0.1", server.site.port, timeout=60),
    )
    for number, (kind, how, content) in enumerate(tried):
        body = form(content)
        said = f"multipart/form-data; boundary={BOUNDARY}"
        if number % 25 == 24:
            how, said = (
                "wrong content type",
                random.choice(["image/png", "text/html", "", "a/b; c"]),
            )
        elif number % 25 == 23:
            how, body = (
                "wrong form",
                body.replace(random.choice([b"\r\n", b"file", b"--"]), b"-", 1),
            )
        where = f"upload {number}, {kind}, {how}, {len(content)} bytes"
        try:
            line.request("POST", "/search", body, {"Content-Type": said})
            answer = line.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.must(False, f"{where}: {type(error).__name__} {error}")
            line.close()
            continue
        good = answer.status == 200 and len(told["results"]) == 8
        refused = 400 <= answer.status < 500 and "must" in told["detail"]
        failures.must(good or refused, f"{where}: {answer.status} {str(told)[:300]}")
        if how == "whole":
            failures.must(good == (kind != "TIFF"), f"{where}: {answer.status} {told}")
        if number % 50 == 0:
            failures.must(server.is_well(), f"after {where}: /healthz does not answer")
    line.close()
    failures.must(server.memory() < before + 1.5e9, f"memory: {before:,}, then {server.memory():,}")
    failures.must(server.is_well(), "/healthz does not answer")
    server.end(failures)


BAD_CHUNKS = [b"zz\r\n", b"-1\r\n", b"f" * 18 + b"\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"\r\n\r\n"]
BAD_CHUNKS += [b"1\r\n\r\n\r\n1\r\n", b"5\nabcde\n0\n\n"]
BAD_CHUNKS += [b"5;" + b"x" * 99_999, b"0\r\nX: " + b"y" * 99_999, b"\xff" * 50]
LENGTHS = [b"-1", b"1e9", b"99999999999999999999", b"5, 6", b"+5", b"0x5", b""]
PATHS = [
    "/../../etc/passwd",
    "/items/../../etc/passwd",
    "/items/%2e%2e%2fetc%2fpasswd/thumbnail",
    "/items/-1",
    "/%ff%fe",
    "/items/1e9",
    "/items/9999999999999999999999",
    "/items/0%00",
    "/items/NaN/thumbnail",
    "//etc/passwd",
    "/page/%5c..%5c",
    "/items/0/thumbnail/../../../etc/passwd",
    "/page/..%2f..%2f..%2fetc%2fpasswd",
    "/classes/items?start=-1",
    "/classes/items?name=../../../etc/passwd",
    "/classes/items?name=%3Cscript%3E",
    "/items/0/neighbours?k=101",
]


def raw_requests(random):
    """Requests that no decent client sends: given ones, and 300 with bytes changed."""
    upload = upload_head(None)
    for chunks in BAD_CHUNKS:
        yield "bad chunks", upload + chunks
    for length in LENGTHS:
        yield "bad length", upload_head(0).replace(b"Length: 0", b"Length: " + length)
        both = b"Length: 5\r\nTransfer-Encoding: chunked"
        yield "two lengths", upload_head(0).replace(b"Length: 0", both) + b"0\r\n\r\n"
    yield "giant header", GET[:-2] + b"X: " + b"y" * 300_000 + b"\r\n\r\n"
    yield "many headers", GET[:-2] + b"X: y\r\n" * 20_000 + b"\r\n"
    yield "giant address", b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for host in (
        b"evil.example",
        b"localhost.evil",
        b"",
        b"[::1",
        b"localhost\r\nHost: evil.example",
    ):
        yield "wrong host", GET.replace(b"/healthz", b"/about").replace(b"localhost", host)
    for origin in (b"http://evil.example", b"null", b"http://[::1", b"\xff"):
        head = upload_head(3).replace(b"\r\n\r\n", b"\r\nOrigin: " + origin + b"\r\n\r\n")
        yield "wrong origin", head + b"abc"
    for path in PATHS:
        yield "path", f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for turn in range(300):
        whole = bytearray(
            random.choice([GET, upload_head(200) + form(b"x")[:200], upload + b"3\r\nabc\r\n"])
        )
        for _ in range(random.randint(1, 6)):
            whole[random.randrange(len(whole))] = random.randrange(256)
        yield f"fuzz {turn}", bytes(whole)


def statuses(line, seconds):
    """The statuses of all answers on a connection, until it is closed or silent."""
    content, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([line], [], [], left)[0]:
        try:
            piece = line.recv(2**16)
        except ConnectionError:
            break
        if not piece:
            break
        content += piece
        until = min(until, time.monotonic() + 0.3)  # what comes, comes at once
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", content)], content


def test_abuse_of_http(server):
    failures, random = Failures("protocol"), draws("protocol")
    must_refuse = ("wrong host", "wrong origin", "path", "bad length", "giant", "two")
    for what, content in raw_requests(random):
        with closing(socket.create_connection(("127.0.0.1", server.site.port), timeout=30)) as line:
            with suppress(ConnectionError):
                line.sendall(content)
                with suppress(OSError):
                    line.shutdown(socket.SHUT_WR)
            found, told = statuses(line, SECONDS + 20)
        where = f"{what}, {content[:150]!r} of {len(content)} bytes: {found}"
        held = all(status < 500 for status in found) and b"root:" not in told
        if what.startswith(must_refuse):
            held &= 200 not in found
        failures.must(held, f"{where} {told[:300]!r}")
        if what.startswith("fuzz") and int(what[5:]) % 50 == 0:
            failures.must(server.is_well(), f"after {what}: /healthz does not answer")
    failures.must(server.is_well(), "/healthz does not answer")
    server.end(failures)


@pytest.mark.parametrize("what", ["half a request", "half an upload"])
def test_slow_clients_are_sent_away(server, what):
    """A byte now and then, from many at once; others are answered meanwhile."""
    failures = Failures("slow clients")
    whole = GET[:-2] + b"X: " + b"y" * 10_000
    start = 20
    if what == "half an upload":
        whole = upload_head(10_000) + form(bytes(9_000))
        start = whole.index(b"\r\n\r\n") + 60
    with ExitStack() as ending:
        lines = [ending.enter_context(server.site.line()) for _ in range(30)]
        for line in lines:
            line.sendall(whole[:start])
        begun, at = time.monotonic(), start
        while lines and time.monotonic() < begun + SECONDS + 30:
            at += 1
            for line in list(lines):
                try:
                    line.sendall(whole[at : at + 1])
                    if select.select([line], [], [], 0)[0] and not line.recv(2**16):
                        lines.remove(line)
                except OSError:
                    lines.remove(line)
            time.sleep(0.2)
            if at % 10 == 0:
                failures.must(server.is_well(), f"{what}: /healthz does not answer meanwhile")
        failures.must(not lines, f"{what}: {len(lines)} of 30 are still connected")
    server.end(failures)


def test_answers_that_nobody_reads_end_with_their_connection(server):
    failures, before = Failures("unread answers"), server.memory()
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as ending:
        for _ in range(10):
            line = ending.enter_context(server.site.line())
            line.setblocking(False)
            sent = 0
            with suppress(BlockingIOError, ConnectionError):
                while sent < 4_000_000:
                    sent += line.send(ask * 500)
        failures.must(server.is_well(), "/healthz does not answer meanwhile")
        deadline = time.monotonic() + SECONDS + 60
        while server.connections() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = server.connections()
        failures.must(not left, f"{left} of 10 connections are still open")
        grown = server.memory() - before
        failures.must(grown < 5e8, f"memory grew by {grown:,}")
    server.end(failures)


def test_more_connections_than_open_files_are_refused_and_harm_nobody(server):
    failures = Failures("connections")
    for idle in (True, False):
        with ExitStack() as ending:
            for _ in range(3 * FILES):
                line = ending.enter_context(server.site.line())
                if not idle:
                    with suppress(OSError):
                        line.sendall(GET[:30])
            failures.must(server.process.poll() is None, "it has ended")
            failures.must(server.connections() < FILES, f"{server.connections()} of {FILES} files")
            found = None
            with suppress(OSError, http.client.HTTPException):
                found = server.site.get("/about").status
            failures.must(found in (200, 503, None), f"another client got {found}")
        wait_until(server.is_well, 60)
    server.end(failures)


def test_names_that_are_scripts_stay_text(server, tmp_path):
    failures, site = Failures("scripts in names"), server.site
    for path in everything(site):
        answer = site.get(path)
        kind = answer.headers.get("content-type", "")
        failures.must("nosniff" in answer.headers.get("x-content-type-options", ""), path)
        failures.must("html" not in kind or b"alert(" not in answer.body, f"{path}: {kind}")
    names = [item["name"] for item in site.get("/classes/items").json["items"]]
    failures.must(any("<script>" in name for name in names), "the names are others")
    query = sorted((tmp_path / SCRIPT.replace("/", "")).rglob("*.jpg"))[0]
    page = tmp_path / "page.html"
    outcome = command("search", tmp_path / "index", query, "--html", page, "--device", "cpu")
    failures.must(outcome.kind == "answer", str(outcome))
    shown = Path(page).read_text()
    for part in ("<script>alert", "<img src=x", "<i id=7>", 'href="javascript:', "<html><script"):
        failures.must(part not in shown, f"{part} in the page of a search")
    server.end(failures)
