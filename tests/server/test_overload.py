"""Clients that take much and give nothing: connections, unread answers, forms, large pictures."""

import logging
import resource
import select
import signal
import socket
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from fastapi import Response
from server.served import CODE, form, read_answer, serving, start, upload_head
from tiny import wait_until

import weiss.server.app
from weiss.server import Limits, make_app
from weiss.server.batching import Slots
from weiss.server.launch import max_connections, settings, warn_once
from weiss.server.limits import UnavailableError
from weiss.server.uploads import client_of

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 8_000_000


def add_large(app):
    """Add an answer that no buffer of the system holds."""

    @app.get("/large")
    def large():
        return Response(LARGE)


def unread(ending, site, asked=b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", room=4096):
    """A connection that asks and does not read."""
    line = ending.enter_context(socket.socket())
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    line.connect(("127.0.0.1", site.port))
    line.sendall(asked)
    return line


def is_ended(line):
    """Whether the server has reset a connection, without reading from it."""
    poll = select.poll()
    poll.register(line, 0)
    return bool(poll.poll(0))


def test_more_idle_connections_than_descriptors_do_not_stop_the_answers(index):
    limit = "import resource as r; most = r.getrlimit(r.RLIMIT_NOFILE)[1]; "
    process, _, site = start(index, f"{limit}r.setrlimit(r.RLIMIT_NOFILE, (160, most)); {CODE}")
    with ExitStack() as ending:
        for _ in range(250):
            ending.enter_context(site.line())
        assert [site.get("/healthz").status for _ in range(3)] == [200] * 3
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    (line,) = errors.decode().splitlines()  # once, not for every connection
    assert "connections" in line


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [(resource.RLIM_INFINITY, 1000, 1000), (100_000, 1000, 1000), (1024, 300, 512), (1, 1, 1)],
)
def test_half_of_the_free_descriptors_are_kept_for_other_uses(monkeypatch, limit, least, most):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert least <= max_connections(1000) <= most


def test_a_lack_of_descriptors_is_logged_once_and_briefly(catalogue, caplog):
    warn_once.cache_clear()
    settings(make_app(catalogue))
    for _ in range(3):
        try:
            raise OSError(24, "Too many open files")
        except OSError:  # as asyncio does
            words = "socket.accept() out of system resource\nsocket: 7"
            logging.getLogger("asyncio").error(words, exc_info=True)
    logging.getLogger("asyncio").error("something else")
    first, other = caplog.records
    assert "No file descriptor is free" in first.getMessage()
    assert first.exc_info is None
    assert other.getMessage() == "something else"


def test_the_connection_that_has_waited_longest_gives_its_place_to_a_new_one(catalogue):
    with serving(catalogue, Limits(max_connections=3)) as site, ExitStack() as ending:
        lines = [ending.enter_context(site.line()) for _ in range(3)]
        for line in lines:
            line.sendall(WHOLE)
            assert read_answer(line).status == 200
        lines[0].sendall(WHOLE)  # now the second one has waited longest
        assert read_answer(lines[0]).status == 200
        assert site.get("/about").status == 200
        assert lines[1].recv(100) == b""
        lines[0].sendall(WHOLE)
        assert read_answer(lines[0]).status == 200


def test_where_every_connection_has_an_open_request_only_health_is_answered(catalogue):
    with serving(catalogue, Limits(max_connections=3)) as site, ExitStack() as ending:
        lines = [ending.enter_context(site.line()) for _ in range(3)]
        for line in lines:
            head = upload_head(10_000).removesuffix(b"\r\n")
            line.sendall(head + b"Expect: 100-continue\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 100")
        answer = site.get("/about")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["connection"] == "close"
        assert "content-security-policy" in answer.headers
        assert "all are taken" in answer.detail
        assert site.get("/healthz").status == 200
        lines[0].close()
        wait_until(lambda: site.get("/about").status == 200)
        counted = 'weiss_requests_total{method="GET",route="none",status="503"}'
        assert counted in site.get("/metrics").body.decode()


@pytest.mark.parametrize("number", [1, 20])
def test_who_does_not_read_an_answer_is_sent_away(catalogue, number):
    with (
        serving(catalogue, Limits(seconds=0.3), change=add_large) as site,
        ExitStack() as ending,
    ):
        asked = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * number
        line = unread(ending, site, asked)
        wait_until(lambda: is_ended(line), 20)


@pytest.mark.slow
def test_who_reads_slowly_gets_the_whole_answer(catalogue):
    seconds = 3.0
    with (
        serving(catalogue, Limits(seconds=seconds), change=add_large) as site,
        ExitStack() as ending,
    ):
        line = unread(ending, site, room=200_000)
        read, begun = 0, time.monotonic()
        while read < len(LARGE):
            piece = line.recv(200_000)
            assert piece
            read += len(piece)
            # Longer than the limit in all, and never long without reading.
            if time.monotonic() - begun < 2 * seconds:
                time.sleep(0.05)


def test_connections_that_do_not_read_give_their_places_to_new_ones(catalogue):
    limits = Limits(seconds=600, max_connections=2)
    with serving(catalogue, limits, change=add_large) as site, ExitStack() as ending:
        lines = [unread(ending, site) for _ in range(2)]
        for line in lines:
            assert line.recv(1, socket.MSG_PEEK)  # the answer has begun
        wait_until(lambda: site.get("/about").status == 200, 20)
        assert [is_ended(line) for line in lines].count(True) == 1


def test_places_are_free_again_and_one_client_leaves_some_for_others():
    slots = Slots(8, "uploads")
    with ExitStack() as ending:
        for _ in range(6):
            ending.enter_context(slots.take("one"))
        for number, client in ((7, "another"), (8, "third")):
            with pytest.raises(UnavailableError, match="6 uploads of this client"):
                ending.enter_context(slots.take("one"))
            ending.enter_context(slots.take(client))
            assert slots.taken == number
        with pytest.raises(UnavailableError, match="8 uploads are"):
            ending.enter_context(slots.take("another"))
    with pytest.raises(OSError, match="gone"), slots.take("one"):
        raise OSError("gone")
    assert slots.taken == 0


@pytest.mark.parametrize(
    ("asking", "client"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8::1:2", 1), "2001:db8::/64"),
        (("::ffff:192.0.2.7", 1), "::ffff:192.0.2.7"),
        (("127.0.0.1", 1), "127.0.0.1:1"),
        (("::ffff:127.0.0.1", 1), "::ffff:127.0.0.1:1"),
        (None, ""),
    ],
)
def test_a_client_is_an_address_and_one_of_this_machine_is_a_connection(asking, client):
    assert client_of(SimpleNamespace(client=asking)) == client


def test_too_many_uploads_of_one_address_keep_neither_others_nor_items_out(
    catalogue, picture, monkeypatch
):
    monkeypatch.setattr(weiss.server.app, "client_of", lambda request: request.client.host)
    limits = Limits(max_uploads=4, max_waiting=1, seconds=60)
    with serving(catalogue, limits) as site, ExitStack() as ending:
        lines = [ending.enter_context(site.line()) for _ in range(3)]
        for line in lines:
            line.sendall(upload_head(10_000) + b"--")
        site.wait_for("weiss_uploads 3.0")
        refused = site.search(picture)
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert "3 uploads of this client are under way" in refused.detail
        body = form(picture)
        other = socket.create_connection(("127.0.0.1", site.port), 60, ("127.0.0.2", 0))
        with other:
            other.sendall(upload_head(len(body)) + body)
            assert read_answer(other).status == 200
        assert site.get("/items/0/neighbours").status == 200
        assert site.get("/healthz").status == 200
        lines[0].close()
        wait_until(lambda: site.search(picture).status == 200)
