"""`serve` as a process of its own: it says where it is, answers, and ends when it is told to."""

import signal
import socket
import sys
from contextlib import ExitStack

import psutil
import pytest
from server.hostile import scanned
from server.served import BEARER, CODE, TOKEN, form, read_answer, start, upload_head

from weiss.server import serve
from weiss.server.launch import bind, greeting, own_names


def test_a_server_answers_until_ctrl_c_and_says_that_it_stopped(index, picture):
    process, said, site = start(index)
    assert "Serving characters: 320 items." in said
    assert f"http://127.0.0.1:{site.port}" in said
    assert site.search(picture).json["results"][0]["name"] == "U+0041/3.png"
    assert "server" not in site.get("/healthz").headers
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert "Stopped." in out.decode()
    assert errors == b""


def test_neither_half_an_upload_nor_a_slow_picture_holds_it_up(index):
    code = CODE.replace("port=0", "port=0, limits=launch.Limits(seconds=600)")
    code = f"import weiss.server.launch as launch; launch.SHUTDOWN_SECONDS = 1; {code}"
    process, _, site = start(index, code)
    decoders = {child.pid for child in psutil.Process(process.pid).children()}
    slow = form(scanned(6300, 99))  # some seconds, even alone
    lines = [site.line() for _ in range(5)]
    with ExitStack() as ending:
        idle, head, half, *busy = [ending.enter_context(line) for line in lines]
        head.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        half.sendall(upload_head(100_000) + form(b"x")[:150])
        for line in busy:
            line.sendall(upload_head(len(slow)) + slow)
        site.wait_for("weiss_uploads 3.0")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)  # far less than the limit of an upload
        assert idle.recv(100) == head.recv(100) == b""
        statuses = []
        for line in (half, *busy):
            answer = read_answer(line)
            statuses.append(answer.status)
            assert answer.status in (200, 503), answer
            assert answer.status == 200 or "being stopped" in answer.detail
    assert statuses[0] == 503
    assert process.returncode == 0, errors.decode()
    assert "Stopped." in out.decode()
    assert b"Traceback" not in errors
    assert errors.count(b"\n") <= 1  # uvicorn says that it has cancelled some
    assert not any(psutil.pid_exists(pid) for pid in decoders)


def test_a_server_is_known_by_the_name_it_was_given_and_by_its_address():
    assert own_names("127.0.0.2", "127.0.0.2") >= {"127.0.0.2", "localhost", "127.0.0.1"}
    assert own_names("MyHost", "127.0.1.1") >= {"myhost", "127.0.1.1"}
    assert own_names("::1", "::1") == {"localhost", "127.0.0.1", "[::1]"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have but one such address")
@pytest.mark.parametrize(
    ("host", "options", "warning"),
    [
        ("127.0.0.2", "public=False", ""),
        ("127.1", "public=False", ""),
        ("0.0.0.0", f"token={TOKEN!r}", "not encrypted"),
        ("0.0.0.0", "public=True", "no login"),
    ],
)
def test_a_server_answers_at_the_address_that_it_prints_and_by_allowed_names(
    index, host, options, warning
):
    given = f"port=0, host={host!r}, allow_hosts=['catalogue.example'], {options}"
    process, said, site = start(index, CODE.replace("port=0", given))
    said += process.stdout.readline().decode() if warning else ""
    assert ("Warning" in said) is bool(warning)
    assert warning in said
    assert TOKEN not in said
    assert site.host == host
    names = {f"{host}:{site.port}": 200, "catalogue.example": 200, "evil.example": 421}
    assert {name: site.get("/about", Host=name, **BEARER).status for name in names} == names
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


@pytest.mark.parametrize("name", ["https://a.example", "a.example:443", "", "*"])
def test_an_allowed_name_is_a_name_alone(index, name):
    with pytest.raises(ValueError, match="names without scheme, port and path"):
        serve(index, port=0, allow_hosts=[name])


def test_an_address_for_everybody_comes_with_a_warning():
    said = greeting("all", 8000, "0.0.0.0", has_login=False)
    assert "http://all:8000" in said
    assert "there is no login" in said
    assert "not encrypted" in greeting("all", 8000, "0.0.0.0", has_login=True)
    assert "Warning" not in greeting("all", 8000, "127.0.1.1", has_login=False)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"another program uses {port} on 127.0.0.1.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("library", ["uvicorn", "fastapi", "prometheus_client"])
def test_a_library_that_is_missing_is_named_with_the_way_to_install_it(monkeypatch, index, library):
    for name in [name for name in sys.modules if name.startswith(("weiss.server.", library))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f'{library}.* is not. Install them: .*"weiss.serve."'):
        serve(index, port=0)


def test_answers_are_not_held_back():
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # which asyncio looks at


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", -1, "from 0 to 65535"),
        ("127.0.0.1", 65536, "from 0 to 65535"),
        ("192.0.2.1", 0, "host must be an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(host, port, message):
    with pytest.raises(ValueError, match=message):
        bind(host, port)
