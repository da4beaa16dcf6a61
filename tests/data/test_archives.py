"""What is unpacked is complete and inside the folder."""

import io
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections import namedtuple

import pytest

from weiss.data import archives
from weiss.data.archives import unpack

CONTENT = {"birds/a.txt": b"a" * 3000, "birds/deep/b.txt": b"", "c.txt": bytes(range(256)) * 40}
SUFFIXES = ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"]


def entry(name, kind=tarfile.REGTYPE, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, size, 0o4777
    return info


def write(path, content=CONTENT, extra=()):
    """Write an archive of the kind its name says; `extra` are entries of a tar."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in content.items():
                file.writestr(name, data)
        return path
    kind = "" if path.suffix in (".tar", ".tgz") else path.suffix[1:]
    with tarfile.open(path, f"w:{kind}") as file:
        for info in extra:
            file.addfile(info)
        for name, data in content.items():
            file.addfile(entry(name, size=len(data)), io.BytesIO(data))
    return path


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_unpacks_to_the_same(tmp_path, suffix):
    archive = write(tmp_path / f"birds.{suffix}")
    unpack(archive, tmp_path / "new" / "here")
    assert contents(tmp_path / "new" / "here") == CONTENT


def test_empty_folders_are_made_and_dots_mean_nothing(tmp_path):
    folders = [entry("./", tarfile.DIRTYPE), entry("./empty", tarfile.DIRTYPE)]
    unpack(write(tmp_path / "birds.tar", {"./x//y": b"y"}, folders), tmp_path / "here")
    assert (tmp_path / "here" / "empty").is_dir()
    assert contents(tmp_path / "here") == {"x/y": b"y"}


def test_permissions_are_not_restored(tmp_path):
    unpack(write(tmp_path / "birds.tar"), tmp_path / "here")
    assert (tmp_path / "here" / "c.txt").stat().st_mode & 0o7111 == 0


def test_unpacking_again_repairs_and_spares_what_is_not_of_the_archive(tmp_path):
    archive = write(tmp_path / "birds.zip")
    unpack(archive, tmp_path)
    (tmp_path / "birds" / "a.txt").unlink()
    (tmp_path / "c.txt").write_bytes(b"half")
    (tmp_path / "birds" / "mine.txt").write_bytes(b"mine")
    unpack(archive, tmp_path)
    found = contents(tmp_path)
    assert found.pop("birds/mine.txt") == b"mine"
    del found["birds.zip"]
    assert found == CONTENT


def test_a_file_where_a_folder_must_go_is_an_error_not_a_loss(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "birds").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="makes a folder .*birds.*Move it away"):
        unpack(write(tmp_path / "birds.tar"), here)
    assert contents(here) == {"birds": b"mine"}


EVIL_NAMES = [
    "/evil",
    "../evil",
    "birds/../../evil",
    "..",
    "C:/evil",
    "C:evil",
    r"\evil",
    r"..\evil",
]


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, "tar.gz") for name in EVIL_NAMES), ("../evil", "zip")]
)
def test_nothing_lands_outside(tmp_path, name, suffix):
    archive = write(tmp_path / f"evil.{suffix}", {"good": b"good", name: b"evil"})
    with pytest.raises(ValueError, match="the entry .* would land outside.*Nothing was unpacked"):
        unpack(archive, tmp_path / "in" / "here")
    assert set(contents(tmp_path)) == {archive.name}


EVIL_ENTRIES = {
    "link up": ([entry("l", tarfile.SYMTYPE, "../outside")], "outside: '../outside' leads up"),
    "link far up": ([entry("a/l", tarfile.SYMTYPE, "../../x")], "outside: '../x' leads upwards"),
    "absolute link": ([entry("l", tarfile.SYMTYPE, "/etc/passwd")], "'/etc/passwd' is absolute"),
    "hard link up": ([entry("l", tarfile.LNKTYPE, "../outside")], "leads upwards"),
    "absolute hard link": ([entry("l", tarfile.LNKTYPE, "/etc/passwd")], "is absolute"),
    "link to nothing": ([entry("l", tarfile.SYMTYPE, "none")], "link to 'none', no file"),
    "link to itself": ([entry("l", tarfile.SYMTYPE, "l")], "link to 'l', no file"),
    "link to a folder": ([entry("l", tarfile.SYMTYPE, "birds")], "link to 'birds', no file"),
    "device": ([entry("null", tarfile.CHRTYPE)], "neither a file nor a folder"),
    "pipe": ([entry("pipe", tarfile.FIFOTYPE)], "neither a file nor a folder"),
}


@pytest.mark.parametrize("case", EVIL_ENTRIES)
def test_links_that_leave_and_devices_are_refused(tmp_path, case):
    (tmp_path / "outside").write_bytes(b"secret")
    extra, message = EVIL_ENTRIES[case]
    with pytest.raises(ValueError, match=message):
        unpack(write(tmp_path / "evil.tar", extra=extra), tmp_path / "here")
    assert contents(tmp_path / "here") == {}


def test_no_entry_is_written_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = entry("door", tarfile.SYMTYPE, str(outside))
    with pytest.raises(ValueError, match="is absolute"):
        unpack(write(tmp_path / "evil.tar", {"door/evil": b"evil"}, [link]), tmp_path / "here")
    assert contents(outside) == {}


def test_links_inside_become_copies(tmp_path):
    links = [
        entry("birds/soft", tarfile.SYMTYPE, "../c.txt"),
        entry("birds/hard", tarfile.LNKTYPE, "birds/a.txt"),
    ]
    unpack(write(tmp_path / "birds.tar", extra=links), tmp_path / "here")
    found = contents(tmp_path / "here")
    assert found["birds/soft"] == CONTENT["c.txt"]
    assert found["birds/hard"] == CONTENT["birds/a.txt"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("link", "found"), [("../c.txt", CONTENT["c.txt"]), ("../../c.txt", None), ("/c.txt", None)]
)
def test_links_of_a_zip_follow_the_same_law(tmp_path, link, found):
    archive = write(tmp_path / "birds.zip")
    info = zipfile.ZipInfo("birds/soft")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(info, link)
    if found is None:
        with pytest.raises(ValueError, match="would land outside"):
            unpack(archive, tmp_path / "here")
    else:
        unpack(archive, tmp_path / "here")
        assert (tmp_path / "here" / "birds" / "soft").read_bytes() == found


def test_devices_of_a_zip_are_refused(tmp_path):
    info = zipfile.ZipInfo("null")
    info.external_attr = stat.S_IFCHR << 16
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr(info, b"")
    with pytest.raises(ValueError, match="'null' is neither a file nor a folder"):
        unpack(tmp_path / "evil.zip", tmp_path / "here")


def test_an_encrypted_zip_is_named_as_such(tmp_path):
    archive = write(tmp_path / "birds.zip")
    data = bytearray(archive.read_bytes())
    for mark, flags in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        data[data.index(mark) + flags] |= 1
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="encrypted. Unpack it by hand with the password"):
        unpack(archive, tmp_path / "here")


@pytest.mark.parametrize(
    ("suffix", "share"), [*((suffix, 0.7) for suffix in SUFFIXES), ("tar.gz", 0.1), ("zip", 0.0)]
)
def test_an_archive_that_is_cut_short_is_refused_and_leaves_nothing(tmp_path, suffix, share):
    archive = write(tmp_path / f"birds.{suffix}")
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match="whole tar or zip; .*birds.*damaged or not complete"):
        unpack(archive, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_tar_cut_between_two_entries_is_not_taken_for_whole(tmp_path):
    archive = write(tmp_path / "birds.tar", {"a": b"a" * 512, "b": b"b"})
    archive.write_bytes(archive.read_bytes()[:1024])
    with pytest.raises(ValueError, match="the end is missing"):
        unpack(archive, tmp_path / "here")


@pytest.mark.parametrize("suffix", ["tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_a_flipped_bit_is_noticed(tmp_path, suffix):
    archive = write(tmp_path / f"birds.{suffix}", {"a": bytes(range(256)) * 400})
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 16
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(archive, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("data", [b"<html>Please log in</html>", b"PK, or so it says", b""])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "birds.tgz").write_bytes(data)
    with pytest.raises(ValueError, match="must be a whole tar or zip"):
        unpack(tmp_path / "birds.tgz", tmp_path / "here")


def test_an_archive_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a file; got .*none.tgz"):
        unpack(tmp_path / "none.tgz", tmp_path)


def test_a_disk_too_full_is_noticed_and_freed(tmp_path, monkeypatch):
    archive = write(tmp_path / "birds.tar")
    usage = namedtuple("usage", "total used free")(0, 0, 5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="more than the 5,000 bytes that are free in .*here"):
        unpack(archive, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


KILLED = """
import importlib.util, os, signal, sys
from pathlib import Path
# The file alone: the package would import torch.
spec = importlib.util.spec_from_file_location("archives", sys.argv[3])
archives = sys.modules["archives"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(archives)
blocks = archives._blocks
def killing(archive, content):
    yield from blocks(archive, content)
    os.kill(os.getpid(), signal.SIGKILL)
archives._blocks = killing
archives.unpack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_process_killed_while_unpacking_leaves_nothing_that_looks_whole(tmp_path):
    archive, here = write(tmp_path / "birds.tar"), tmp_path / "here"
    command = [sys.executable, "-c", KILLED, archive, here, archives.__file__]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [path.name for path in here.iterdir()] == [".birds.tar.unpacking"]
    unpack(archive, here)
    assert contents(here) == CONTENT


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    archive = write(tmp_path / "birds.tar")
    monkeypatch.setattr(archives, "_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []
