"""`serve` as a process of its own: it says where it is, answers, and ends when it is told to."""

import re
import signal
import socket
import sys

import pytest
from tiny import begin
from web.served import Site

from weiss.web import serve
from weiss.web.server import bind, greeting, is_loopback

CODE = "import sys; from weiss.web import serve; serve(sys.argv[1], port=0, device='cpu')"


def start(index):
    process = begin([sys.executable, "-c", CODE, str(index)])
    said = ""
    while not re.search(r"Ctrl-C stops it\.", said):
        line = process.stdout.readline().decode()
        assert line, process.stderr.read().decode()
        said += line
    return process, said, Site(int(re.search(r":(\d+) in a browser", said)[1]))


def test_a_server_answers_until_ctrl_c_and_says_that_it_stopped(index, picture):
    process, said, site = start(index)
    assert "Serving characters: 320 items." in said
    assert f"http://127.0.0.1:{site.port}" in said
    assert site.search(picture).json["results"][0]["name"] == "U+0041/3.png"
    assert "server" not in site.get("/healthz").headers
    # An open connection and half an upload must not hold it up for long.
    with site.line() as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert "Stopped." in out.decode()
    assert errors == b""


def test_an_address_for_everybody_comes_with_a_warning():
    assert "there is no login" in greeting("0.0.0.0", 8000)
    assert "http://0.0.0.0:8000" in greeting("0.0.0.0", 8000)
    assert "Warning" not in greeting("localhost", 8000)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"another program has {port} on 127.0.0.1.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("library", ["uvicorn", "fastapi", "python_multipart"])
def test_a_library_that_is_missing_is_named_with_the_way_to_install_it(monkeypatch, index, library):
    for name in [name for name in sys.modules if name.startswith(("weiss.web.", library))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f'{library}.* is not. Install them: .*"weiss.serve."'):
        serve(index, port=0)


def test_answers_are_not_held_back():
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # which asyncio looks at


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", -1), ("127.0.0.1", 65536)])
def test_a_port_is_a_number_of_16_bits(host, port):
    with pytest.raises(ValueError, match="from 0 to 65535"):
        bind(host, port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ValueError, match="host must be an address of this machine"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "is_private"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("localhost.example", False),
    ],
)
def test_only_addresses_of_this_machine_are_private(host, is_private):
    assert is_loopback(host) is is_private
