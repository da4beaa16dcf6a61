"""What lies under a file's name is whole, whatever the network does."""

import hashlib
import json
import shutil
import socket
from collections import namedtuple
from threading import Thread

import pytest
from loopback import Site, serving

from weiss._base import downloads
from weiss._base.downloads import Checksum, DownloadError, fetch

BODY = bytes(range(256)) * 400
OTHER = BODY[::-1]
MD5 = Checksum("md5", hashlib.md5(BODY).hexdigest(), "the test")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(downloads.time, "sleep", pauses.append)
    return pauses


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once(tmp_path):
    target = tmp_path / "new" / "file.bin"
    with serving(Site(BODY)) as site:
        for checksum in (MD5, MD5, None):
            assert fetch(site.url, target, checksum=checksum) == target
        assert len(site.asked) == 1
    assert target.read_bytes() == BODY
    assert files(target.parent) == ["file.bin"]


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_first_digits_of_a_checksum_suffice(tmp_path, algorithm):
    value = hashlib.new(algorithm, BODY).hexdigest()[:8]
    with serving(Site(BODY)) as site:
        fetch(site.url, tmp_path / "file.bin", checksum=Checksum(algorithm, value, "a file name"))


@pytest.mark.parametrize(
    ("algorithm", "value", "message"),
    [
        ("sha1", "0" * 40, "algorithm must be one of 'md5', 'sha256'"),
        ("md5", "0" * 7, "value must be 8 to 32 hexadecimal digits"),
        ("md5", "0" * 33, "value must be 8 to 32 hexadecimal digits"),
        ("md5", "ABCDEF01", "in lower case"),
    ],
)
def test_what_is_no_checksum_is_refused(algorithm, value, message):
    with pytest.raises(ValueError, match=message):
        Checksum(algorithm, value, "nobody")


@pytest.mark.parametrize(
    ("site", "checksum", "first_bytes"),
    [
        pytest.param({"cuts": [1000, 1, 50_000]}, MD5, [0, 1000, 1001, 51_001], id="thrice"),
        pytest.param(
            {"cuts": [1000, 2000], "ranges": False}, None, [0, 1000, 2000], id="no ranges"
        ),
        pytest.param({"cuts": [700], "etag": None}, None, [0, 0], id="no version, no checksum"),
        pytest.param({"cuts": [700], "etag": None}, MD5, [0, 700], id="a checksum suffices"),
        pytest.param({"cuts": [700], "etag": 'W/"one"'}, None, [0, 0], id="a weak tag"),
        pytest.param({"cuts": [700], "start_error": 1}, None, [0, 700, 0], id="starts elsewhere"),
        pytest.param({"cuts": [700], "chunked": True}, MD5, [0, 700], id="of unknown length"),
    ],
)
def test_a_lost_connection_resumes_where_it_broke_or_starts_again_where_that_is_not_safe(
    tmp_path, no_pauses, site, checksum, first_bytes
):
    with serving(Site(BODY, **site)) as server:
        fetch(server.url, tmp_path / "file.bin", checksum=checksum)
    assert server.first_bytes == first_bytes
    assert (tmp_path / "file.bin").read_bytes() == BODY
    if len(site["cuts"]) == 3:
        assert no_pauses == [1, 1, 1], "each try brought something new"


def test_a_later_call_resumes_too(tmp_path):
    target = tmp_path / "file.bin"
    with serving(Site(BODY, cuts=[700] + [0] * 4)) as site:
        with pytest.raises(DownloadError, match="closed after 700 of 102,400 bytes.*by hand"):
            fetch(site.url, target)
        assert files(tmp_path) == ["file.bin.part", "file.bin.part.json"]
        fetch(site.url, target)
    assert site.first_bytes == [0] + [700] * 5
    assert target.read_bytes() == BODY
    assert files(tmp_path) == ["file.bin"]


def test_tries_without_progress_end_after_growing_pauses(tmp_path, no_pauses):
    with serving(Site(BODY, cuts=[0] * 9)) as site, pytest.raises(DownloadError):
        fetch(site.url, tmp_path / "file.bin")
    assert no_pauses == list(downloads.PAUSES)
    assert sorted(no_pauses) == no_pauses


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"etag": '"one"'}, {"etag": '"two"'}),
        ({"etag": None, "modified": "Mon, 01 Jan"}, {"etag": None, "modified": "Tue, 02 Jan"}),
    ],
)
def test_versions_of_a_file_are_never_spliced(tmp_path, before, after, if_range):
    target = tmp_path / "file.bin"
    with serving(Site(BODY, cuts=[700] + [0] * 4, **before)) as old:
        with pytest.raises(DownloadError):
            fetch(old.url, target)
        note = json.loads((tmp_path / "file.bin.part.json").read_text())
    with serving(Site(OTHER, if_range=if_range, **after)) as new:
        (tmp_path / "file.bin.part.json").write_text(json.dumps({**note, "url": new.url}))
        fetch(new.url, target)
        assert new.first_bytes[0] == 700
    assert target.read_bytes() == OTHER


def part_of(tmp_path, site, body, **note):
    (tmp_path / "file.bin.part").write_bytes(body)
    note = {"url": site.url, "etag": site.etag, "modified": None, "total": None, **note}
    (tmp_path / "file.bin.part.json").write_text(json.dumps(note))


def test_a_part_that_is_whole_is_not_fetched_again(tmp_path):
    with serving(Site(BODY)) as site:
        part_of(tmp_path, site, BODY, total=len(BODY))
        fetch(site.url, tmp_path / "file.bin", checksum=MD5)
        assert site.asked == []
        (tmp_path / "file.bin").unlink()
        part_of(tmp_path, site, BODY)  # its length was not known: the server answers 416
        fetch(site.url, tmp_path / "file.bin", checksum=MD5)
        assert site.first_bytes == [len(BODY)]
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_thrown_away(tmp_path):
    with serving(Site(BODY)) as site:
        part_of(tmp_path, site, BODY + b"more")
        fetch(site.url, tmp_path / "file.bin")
    assert site.first_bytes == [len(BODY) + 4, 0]
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize(
    "note", [None, "no json", "[]", '{"url": "http://elsewhere/", "etag": "\\"one\\""}']
)
def test_a_part_of_unknown_origin_is_not_trusted(tmp_path, note):
    (tmp_path / "file.bin.part").write_bytes(OTHER[:500])
    if note is not None:
        (tmp_path / "file.bin.part.json").write_text(note)
    with serving(Site(BODY)) as site:
        fetch(site.url, tmp_path / "file.bin")
    assert site.first_bytes == [0]
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing(tmp_path):
    with (
        serving(Site(OTHER)) as site,
        pytest.raises(ValueError, match=f"md5 {MD5.value}, published by the test; got .*deleted"),
    ):
        fetch(site.url, tmp_path / "file.bin", checksum=MD5)
    assert files(tmp_path) == []


def test_a_wrong_file_under_the_name_is_moved_aside(tmp_path):
    (tmp_path / "file.bin").write_bytes(OTHER)
    with serving(Site(BODY)) as site:
        fetch(site.url, tmp_path / "file.bin", checksum=MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert (tmp_path / "file.bin.wrong").read_bytes() == OTHER


def test_a_file_missing_on_the_server_is_an_error_at_once(tmp_path):
    target = tmp_path / "file.bin"
    with (
        serving(Site(BODY)) as site,
        pytest.raises(DownloadError, match=f"birds must .*{site.url}x.* 404 .*put it at {target}"),
    ):
        fetch(site.url + "x", target, what="birds")
    assert len(site.asked) == 1
    assert files(tmp_path) == []


def test_a_busy_server_is_asked_again(tmp_path, no_pauses):
    with serving(Site(BODY, statuses=[503, 429])) as site:
        fetch(site.url, tmp_path / "file.bin")
    assert len(site.asked) == 3
    assert no_pauses == [1, 2]


def test_without_network_one_plain_error_comes_at_once(tmp_path, no_pauses):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/birds.tgz"
    with pytest.raises(DownloadError, match=f"{url}.*refused.*put it at .*birds.tgz"):
        fetch(url, tmp_path / "birds.tgz")
    assert no_pauses == []
    assert files(tmp_path) == []


def test_a_silent_server_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/birds.tgz"
        with pytest.raises(DownloadError, match="timed out"):
            fetch(url, tmp_path / "birds.tgz")


def test_a_disk_too_full_is_noticed_before_the_first_byte(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(0, 0, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with (
        serving(Site(BODY)) as site,
        pytest.raises(OSError, match="needs 102,400 bytes in .* 1,000 free. Make room"),
    ):
        fetch(site.url, tmp_path / "file.bin")
    assert files(tmp_path) == []


def test_files_of_this_machine_have_addresses_too(tmp_path):
    (tmp_path / "origin.bin").write_bytes(BODY)
    fetch((tmp_path / "origin.bin").as_uri(), tmp_path / "file.bin", checksum=MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY
    with pytest.raises(DownloadError, match="No such file"):
        fetch((tmp_path / "none.bin").as_uri(), tmp_path / "none")


@pytest.mark.parametrize("url", ["birds.tgz", "gopher://example.org/birds.tgz"])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match=f"must start with one of http.*got '{url}'"):
        fetch(url, tmp_path / "birds.tgz")


def test_a_file_that_is_there_needs_no_right_to_write(tmp_path):
    (tmp_path / "file.bin").write_bytes(BODY)
    tmp_path.chmod(0o500)
    try:
        assert fetch("http://nowhere.invalid/", tmp_path / "file.bin", checksum=MD5).exists()
    finally:
        tmp_path.chmod(0o700)


def test_others_that_need_the_same_file_wait_and_find_it(tmp_path):
    target = tmp_path / "file.bin"
    with serving(Site(BODY)) as site:
        with downloads.alone(target):
            threads = [Thread(target=fetch, args=(site.url, target)) for _ in range(3)]
            for thread in threads:
                thread.start()
            threads[0].join(0.05)
            assert all(thread.is_alive() for thread in threads)
            assert site.asked == []
        for thread in threads:
            thread.join()
    assert len(site.asked) == 1
    assert files(tmp_path) == ["file.bin"]
