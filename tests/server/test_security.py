"""Untrusted requests are refused with the reason; the server keeps running and shows no paths."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from server.hostile import png_of
from server.served import BOUNDARY, everything, form, read_answer, serving, upload_head

import weiss.server.middleware
from weiss.server import Limits

SMALL = Limits(max_bytes=200_000, seconds=1.2, max_uploads=2, max_waiting=2)


@pytest.fixture(scope="module")
def strict(catalogue):
    """A server of small limits."""
    with serving(catalogue, SMALL) as site:
        yield site


def test_an_upload_that_says_to_be_too_large_is_refused_before_it_comes(strict):
    with strict.line() as line:
        line.sendall(upload_head(100_000_000))
        answer = read_answer(line)
    assert answer.status == 413
    assert "at most 0.2 MB" in answer.detail


@pytest.fixture
def patient(monkeypatch):
    """Let the server read the rest of a refused upload, however busy the machine is."""
    monkeypatch.setattr(weiss.server.middleware, "LINGER_SECONDS", 60)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_an_upload_of_unknown_size_is_refused_and_the_client_hears_why(strict, expect):
    head = form(b"").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    with strict.line() as line:
        line.sendall(upload_head(None).removesuffix(b"\r\n") + expect + b"\r\n")
        if expect:
            assert line.recv(100).startswith(b"HTTP/1.1 100")
        # Far more than the limit, and no end in sight; a closed connection would be an error here.
        for piece in (head, *[b"x" * 50_000] * 400):
            line.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert read_answer(line).status == 413


@pytest.mark.usefixtures("patient")
def test_a_client_that_sends_far_too_much_hears_why_it_was_refused(site):
    assert site.search(bytes(100_000_000)).status == 413


def test_a_file_may_fill_its_limit_and_not_a_byte_more(catalogue, picture):
    with serving(catalogue, Limits(max_bytes=len(picture))) as site:
        assert site.search(picture).status == 200
        assert site.search(picture + b"\0").status == 413


def test_a_slow_upload_is_given_up_and_frees_its_place(strict, picture):
    body = form(picture)
    with strict.line() as line:
        line.sendall(upload_head(len(body)) + body[:50])
        answer = read_answer(line)
    assert answer.status == 408
    assert "within 1.2 seconds" in answer.detail
    assert strict.search(picture).status == 200


def test_an_upload_that_breaks_off_harms_nobody(strict, picture):
    body = form(picture)
    for length in (0, 10, 150, len(body) - 5):
        with strict.line() as line:
            line.sendall(upload_head(len(body)) + body[:length])
    strict.wait_for("weiss_uploads 0.0")
    assert strict.search(picture).status == 200


@pytest.mark.parametrize(("before", "together"), [(0, True), (1, True), (2, False)])
def test_who_begins_to_ask_and_does_not_end_is_sent_away(strict, before, together):
    whole, half = (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local",
    )
    with strict.line() as line:
        line.settimeout(30)
        if together:
            line.sendall(whole * before + half)
        answered = b""
        for number in range(before):
            if not together:
                line.sendall(whole)
            while answered.count(b'{"status"') <= number:
                answered += line.recv(10_000)
        if not together:
            line.sendall(half)
        assert line.recv(100) == b""


def test_who_asks_slowly_but_in_time_is_answered_again_and_again(catalogue):
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(catalogue, Limits(seconds=3)) as site, site.line() as line:
        for _ in range(3):  # together longer than the limit
            line.sendall(whole[:20])
            time.sleep(1.1)
            line.sendall(whole[20:])
            assert read_answer(line).status == 200


def test_what_is_no_request_is_refused_as_everything_else_is(catalogue):
    with serving(catalogue) as site:
        with site.line() as line:
            line.sendall(b"GET /\0 HTTP/1.1\r\n\r\n")
            answer = read_answer(line)
            assert line.recv(100) == b""
        assert answer.status == 400
        assert "must be HTTP" in answer.detail
        names = {name.lower() for name in answer.headers}
        assert {"content-security-policy", "x-content-type-options"} <= names
        counted = 'weiss_requests_total{method="other",route="none",status="400"} 1'
        assert counted in site.get("/metrics").body.decode()


PART = f"--{BOUNDARY}\r\n".encode()


def part(name, content):
    return (
        PART + f'Content-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"
    )


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (part("file", b"x"), 400, "cut short"),
        (b"no form", 400, "well-formed"),
        (PART + b"A" * 100_000 + b"\r\n\r\nx", 400, "well-formed"),
        (PART + b"X: y\r\n" * 5000 + b"\r\nx", 400, "well-formed"),
        (PART + b'Content-Disposition: form-data; name="file\r\n\r\nx', 400, "a field named file"),
        ((PART + b"\r\n\r\n") * 30 + form(b"x"), 413, "at most 16 parts"),
        (part("note", b"x" * 100_000) + form(b"x"), 413, "at most 64 KiB beside the file"),
        (part("file", b"x") + part("file", b"x" * 100_000), 413, "at most 64 KiB beside the file"),
        # To the parser, each of these costs as much as a part.
        (form(f"\r\n--{BOUNDARY}x".encode() * 20_000), 400, "well-formed"),
    ],
)
def test_a_form_is_whole_and_has_few_parts_and_little_beside_its_file(site, body, status, words):
    answer = site.post(body)
    assert answer.status == status
    assert words in answer.detail


def test_of_several_files_the_first_counts_and_other_fields_are_forgotten(strict, picture):
    first = part("file", picture)
    answer = strict.post(part("note", b"hello") + first + form(b"no picture"))
    assert answer.json["results"][0]["name"] == "U+0041/3.png"


@pytest.mark.parametrize("name", ["../../../etc/passwd", "a\0b", "<script>", "é" * 300])
def test_the_name_of_a_file_is_neither_used_nor_shown(site, picture, name):
    answer = site.search(picture, name=name)
    assert answer.status == 200
    assert answer.json["results"][0]["name"] == "U+0041/3.png"
    assert name.encode() not in answer.body
    assert b"passwd" not in site.search(b"broken", name="../../etc/passwd").body


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/index.html",
        "/page/",
        "/../../../../etc/passwd",
        "/items/..%2f..%2fetc%2fpasswd/thumbnail",
        "/classes/items?name=../../etc/passwd",
        "/static/../../etc/passwd",
    ],
)
def test_no_address_leads_to_a_file_that_is_not_of_the_page(site, path):
    answer = site.get(path)
    assert 400 <= answer.status < 500
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


def test_no_answer_shows_where_anything_is_on_this_machine(site, index, pictures, picture):
    answers = [site.get(path).body for path in everything(site)]
    answers += [site.get(path).body for path in ("/items/77777", "/page/x", "/items/x", "/x")]
    answers += [site.search(content).body for content in (picture, b"", b"x", png_of(10, 10))]
    secrets = [index.parent, pictures.parent, tempfile.gettempdir(), Path.home(), Path.cwd()]
    for secret in map(str, secrets):
        if len(secret) < 5:  # "/tmp" is nobody's secret and stands in none of them either
            secret += "/"
        assert not any(secret.encode() in body for body in answers), secret


def test_a_mistake_of_the_server_is_answered_without_its_text(catalogue, picture):
    def change(app):
        @app.get("/mistake")
        def mistake():
            raise RuntimeError("/secret/place")

    with serving(catalogue, change=change) as site:
        answer = site.get("/mistake")
        assert answer.status == 500
        assert "secret" not in answer.detail
        assert "x-content-type-options" in answer.headers
        assert site.search(picture).status == 200


def test_every_answer_tells_the_browser_to_be_careful(site, picture):
    answers = [site.get(path, Origin="http://evil.example") for path in everything(site)]
    answers += [site.get("/none"), site.search(b""), site.get("/", Host="evil.example")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_too_many_searches_at_once_are_told_to_come_back(catalogue, picture, held_search):
    with serving(catalogue, Limits(max_waiting=2)) as site, ThreadPoolExecutor(2) as visitors:
        answers = [visitors.submit(site.get, "/items/0/neighbours") for _ in range(2)]
        site.wait_for("weiss_waiting 2.0")
        for answer in (site.search(picture), site.get("/items/0/neighbours")):
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert "2 searches are under way" in answer.detail
        held_search.set()
        assert [answer.result(60).status for answer in answers] == [200, 200]
        assert site.search(picture).status == 200


PROXY = "catalogue.example.org"
LOCAL, LOCAL_OF_PROXY, ANY, LISTED = (
    {},
    {"allowed": (PROXY,)},
    {"hosts": None},
    {"hosts": None, "allowed": (PROXY,)},
)
EVIL = {"Origin": "http://evil.example"}
CROSS = {"Sec-Fetch-Site": "cross-site"}


def own(host, page=None):
    """The headers of an upload from a page; by default from the page of this host."""
    page = f"http://{host}" if page is None else page
    return {"Host": host, "Origin": page, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def site_of(catalogue):
    """A function that returns a server by its options."""
    with ExitStack() as ending:

        @cache
        def serve(options):
            return ending.enter_context(serving(catalogue, **dict(options)))

        yield lambda options: serve(tuple(options.items()))


@pytest.mark.parametrize(
    ("options", "headers", "look", "upload"),
    [
        *[(LOCAL, {"Host": host}, 200, 200) for host in ("localhost", "LOCALHOST")],
        *[(LOCAL, {"Host": host}, 200, 200) for host in ("127.0.0.1:8000", "[::1]:9000")],
        # A name that somebody points at this machine.
        *[(LOCAL, {"Host": host}, 421, 421) for host in ("evil.example", "localhost.evil", "")],
        *[(LOCAL, {"Host": host}, 421, 421) for host in ("127.0.0.1.evil.example", PROXY)],
        # Foreign pages can look, as no answer is shown to them, but not upload.
        (LOCAL, own("localhost:8000"), 200, 200),
        *[(LOCAL, {"Origin": page}, 200, 403) for page in ("http://localhost:1", "http://[::1")],
        *[(LOCAL, headers, 200, 403) for headers in (EVIL, CROSS, {"Origin": "null"})],
        (LOCAL, {"Sec-Fetch-Site": "same-site"}, 200, 403),
        (LOCAL, own("127.0.0.1:8000", f"https://{PROXY}"), 200, 403),
        # Behind a proxy of an allowed name.
        (LOCAL_OF_PROXY, own(f"{PROXY.upper()}:8443", f"https://{PROXY}"), 200, 200),
        (LOCAL_OF_PROXY, own("127.0.0.1:8000", f"https://{PROXY}"), 200, 200),
        (LOCAL_OF_PROXY, own(PROXY) | EVIL, 200, 403),
        (LOCAL_OF_PROXY, own(PROXY) | CROSS, 200, 403),
        (LOCAL_OF_PROXY, own("localhost:1", "http://localhost:2"), 200, 403),
        (LOCAL_OF_PROXY, {"Host": f"{PROXY}.evil.example"}, 421, 421),
        # Where others may come, any name is let in, unless there is a list.
        (ANY, own("shop.example"), 200, 200),
        (ANY, own("shop.example") | EVIL, 200, 403),
        (LISTED, own(PROXY), 200, 200),
        (LISTED, {}, 200, 200),  # 127.0.0.1: no page can take this name
        (LISTED, own("evil.example"), 421, 421),
    ],
)
def test_names_and_pages_of_others_are_refused(site_of, picture, options, headers, look, upload):
    site = site_of(options)
    answers = [site.get("/about", **headers), site.search(picture, **headers)]
    assert [answer.status for answer in answers] == [look, upload]
    words = {421: "--allow-host", 403: "own page"}
    assert all(words.get(answer.status, "") in answer.body.decode() for answer in answers)
