"""What is unpacked is complete and inside the folder."""

import io
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import warnings
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
    assert (tmp_path / "new" / "here" / "c.txt").stat().st_mode & 0o7111 == 0


def test_empty_folders_are_made_and_dots_mean_nothing(tmp_path):
    folders = [entry("./", tarfile.DIRTYPE), entry("./empty", tarfile.DIRTYPE)]
    unpack(write(tmp_path / "birds.tar", {"./x//y": b"y"}, folders), tmp_path / "tar")
    unpack(write(tmp_path / "birds.zip", {"./x//y": b"y", "empty/": b""}), tmp_path / "zip")
    for here in (tmp_path / "tar", tmp_path / "zip"):
        assert (here / "empty").is_dir()
        assert contents(here) == {"x/y": b"y"}


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


EVIL = ["/evil", "../evil", "birds/../../evil", "..", "C:/evil", "C:evil", r"\evil", r"..\evil"]


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, "tar.gz") for name in EVIL), ("../evil", "zip")]
)
def test_nothing_lands_outside(tmp_path, name, suffix):
    archive = write(tmp_path / f"evil.{suffix}", {"good": b"good", name: b"evil"})
    with pytest.raises(ValueError, match="the entry .* would land outside.*Nothing was unpacked"):
        unpack(archive, tmp_path / "in" / "here")
    assert set(contents(tmp_path)) == {archive.name}


def zip_with(path, name, kind, link):
    """Write a zip with an entry of a kind, a link or a device."""
    write(path)
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(info, link)
    return path


EVIL_ENTRIES = [
    ("l", tarfile.SYMTYPE, "../outside", "outside: '../outside' leads up"),
    ("a/l", tarfile.SYMTYPE, "../../x", "outside: '../x' leads upwards"),
    ("l", tarfile.SYMTYPE, "/etc/passwd", "'/etc/passwd' is absolute"),
    ("birds", tarfile.SYMTYPE, "/outside", "is absolute"),  # nothing is written through it
    ("birds", tarfile.SYMTYPE, "c.txt", "a link in the place of a folder"),
    ("l", tarfile.LNKTYPE, "../outside", "leads upwards"),
    ("l", tarfile.LNKTYPE, "/etc/passwd", "is absolute"),
    ("l", tarfile.SYMTYPE, "none", "link to 'none', no file"),
    ("l", tarfile.SYMTYPE, "l", "link to 'l', no file"),
    ("l", tarfile.SYMTYPE, "birds", "link to 'birds', no file"),
    ("null", tarfile.CHRTYPE, "", "neither a file nor a folder"),
    ("pipe", tarfile.FIFOTYPE, "", "neither a file nor a folder"),
    ("birds/l", stat.S_IFLNK, "../../c.txt", "would land outside"),
    ("birds/l", stat.S_IFLNK, "/c.txt", "would land outside"),
    ("null", stat.S_IFCHR, "", "'null' is neither a file nor a folder"),
]


@pytest.mark.parametrize(("name", "kind", "link", "message"), EVIL_ENTRIES)
def test_links_that_leave_and_devices_are_refused(tmp_path, name, kind, link, message):
    (tmp_path / "outside").write_bytes(b"secret")
    if isinstance(kind, bytes):
        archive = write(tmp_path / "evil.tar", extra=[entry(name, kind, link)])
    else:
        archive = zip_with(tmp_path / "evil.zip", name, kind, link)
    with pytest.raises(ValueError, match=message):
        unpack(archive, tmp_path / "here")
    assert contents(tmp_path / "here") == {}


def test_links_inside_become_copies(tmp_path):
    links = [
        entry("birds/soft", tarfile.SYMTYPE, "../c.txt"),
        entry("birds/hard", tarfile.LNKTYPE, "birds/a.txt"),
    ]
    unpack(write(tmp_path / "birds.tar", extra=links), tmp_path / "here")
    found = contents(tmp_path / "here")
    assert found["birds/soft"] == CONTENT["c.txt"]
    assert found["birds/hard"] == CONTENT["birds/a.txt"]
    zipped = zip_with(tmp_path / "birds.zip", "birds/soft", stat.S_IFLNK, "../c.txt")
    unpack(zipped, tmp_path / "there")
    assert contents(tmp_path / "there")["birds/soft"] == CONTENT["c.txt"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def flipped(data, at=None, bit=16):
    data = bytearray(data)
    data[len(data) // 2 if at is None else at] ^= bit
    return bytes(data)


def encrypted(data):
    return flipped(flipped(data, data.index(b"PK\1\2") + 8, 1), data.index(b"PK\3\4") + 6, 1)


CUT = "whole tar or zip; .*birds.*damaged or not complete"
DAMAGE = [
    *((suffix, lambda data: data[: int(len(data) * 0.7)], CUT) for suffix in SUFFIXES),
    ("tar.gz", lambda data: data[: int(len(data) * 0.1)], CUT),
    ("tar", lambda data: data[: 512 + 3072], "the end is missing"),  # between two entries
    *((suffix, flipped, "cannot be read") for suffix in SUFFIXES[1:]),
    *((suffix, lambda _: b"", CUT) for suffix in ("zip", "tar.gz")),
    ("tar.gz", lambda _: b"<html>Please log in</html>", CUT),
    ("tar.gz", lambda _: b"PK, or so it says", CUT),
    ("zip", encrypted, "encrypted. Unpack it by hand with the password"),
]


@pytest.mark.parametrize(("suffix", "damaged", "message"), DAMAGE)
def test_a_damaged_archive_is_refused_and_leaves_nothing(tmp_path, suffix, damaged, message):
    archive = write(tmp_path / f"birds.{suffix}")
    archive.write_bytes(damaged(archive.read_bytes()))
    with pytest.raises(ValueError, match=message):
        unpack(archive, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def interrupted(*_):
    raise KeyboardInterrupt


def nearly_full(_):
    return namedtuple("usage", "total used free")(0, 0, 5000)


@pytest.mark.parametrize(
    ("where", "what", "error", "message"),
    [
        (archives, ("_blocks", interrupted), KeyboardInterrupt, None),
        (shutil, ("disk_usage", nearly_full), OSError, "the 5,000 bytes that are free in .*here"),
    ],
)
def test_an_interruption_or_a_full_disk_leaves_nothing(
    tmp_path, monkeypatch, where, what, error, message
):
    monkeypatch.setattr(where, *what)
    with pytest.raises(error, match=message):
        unpack(write(tmp_path / "birds.tar"), tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_an_archive_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a file; got .*none.tgz"):
        unpack(tmp_path / "none.tgz", tmp_path)


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


def bomb_zip(path):
    """10 MB of zeros in 10 kB, three times."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(3):
            file.writestr(f"{number}.bin", bytes(10**7))


def many_entries(path):
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        for number in range(3000):
            file.addfile(entry(str(number)))


def copies(path):
    with tarfile.open(path, "w") as file:
        file.addfile(entry("a", size=10**6), io.BytesIO(bytes(10**6)))
        for number in range(300):
            file.addfile(entry(f"link{number}", tarfile.LNKTYPE, "a"))


def long_description(path):
    with tarfile.open(path, "w:gz") as file:
        huge = entry("x", tarfile.GNUTYPE_LONGNAME, size=2 * 10**6)
        file.fileobj.write(huge.tobuf(tarfile.GNU_FORMAT) + bytes(2 * 10**6))
        file.addfile(entry("a"))


def twice(path):
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w") as file:
        file.writestr("a.csv", b"good")
        file.writestr("./a.csv", b"evil")


HOSTILE = {
    "bomb.zip": (bomb_zip, "must not grow to more than 100 times"),
    "copies.tar": (copies, "must not grow to more than 100 times"),
    "many.tar.gz": (many_entries, "must not grow to more than 100 times"),
    "header.tar.gz": (long_description, "description of an entry has 2,000,000 bytes"),
    "twice.zip": (twice, "'./a.csv' is there twice.*or unpack it by hand"),
    "deep.tar": (lambda path: write(path, {"d/" * 5000 + "a": b"a"}), "name of more than 64 fol"),
    "long.tar": (lambda path: write(path, {"n" * 300: b"a"}), "or 255 bytes"),
    "below.tar": (lambda path: write(path, {"a": b"", "a/b": b""}), "'a/b' is below a file"),
    "above.tar": (lambda path: write(path, {"a/b": b"", "a": b""}), "'a' is there twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, monkeypatch, name):
    make, message = HOSTILE[name]
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 10**6, raising=False)
    make(tmp_path / name)
    with pytest.raises(ValueError, match=message) as caught:
        unpack(tmp_path / name, tmp_path / "here")
    assert len(str(caught.value)) < 1000
    assert contents(tmp_path / "here") == {}


def test_an_ordinary_archive_of_many_small_files_is_no_bomb(tmp_path):
    content = {f"{number}.txt": b"a" * 100 for number in range(500)}
    unpack(write(tmp_path / "small.tar.gz", content), tmp_path / "here")
    assert contents(tmp_path / "here") == content
