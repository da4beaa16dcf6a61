"""What a number was made with, and nothing about who made it."""

import getpass
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from weiss.runs import provenance
from weiss.runs.provenance import made_with, recorded_command

CPU = torch.device("cpu")
HERE = Path(provenance.__file__).parent


def words(found):
    """Every word that is said, keys and values at any depth."""
    if isinstance(found, dict):
        return [w for key, value in found.items() for w in [*words(key), *words(value)]]
    if isinstance(found, list | tuple):
        return [w for value in found for w in words(value)]
    return [str(found)]


def test_it_says_what_a_number_depends_on():
    found = made_with(CPU, 3)
    assert found["python"] == platform.python_version()
    # Only one of the two may name the build, as in 2.8.0+cu126.
    versions = (found["versions"]["torch"], torch.__version__)
    assert len({version.partition("+")[0] for version in versions}) == 1
    assert set(found["versions"]) <= set(provenance.LIBRARIES)
    assert found["device"] == "CPU"
    assert found["processes"] == 3
    assert found["cpu_threads"] == torch.get_num_threads()
    assert found["memory_gb"] > 0
    assert found["cpu"]
    assert "cuda" not in found
    assert json.loads(json.dumps(found)) == found
    assert None not in [*found.values(), *found["versions"].values()]
    assert made_with(CPU)["processes"] == 1
    assert made_with(torch.device("mps"))["device"] == "mps"


def test_it_names_no_folder_no_user_and_no_host(monkeypatch):
    user, host, home = "j.user-of-this", "host-of-this", "/home/j.user-of-this"
    for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(name, user)
    for name in ("HOST", "HOSTNAME", "COMPUTERNAME"):
        monkeypatch.setenv(name, host)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(platform, "node", lambda: host)
    monkeypatch.setattr(platform, "_uname_cache", None, raising=False)
    given = os.uname()
    changed = os.uname_result((given.sysname, host, given.release, given.version, given.machine))
    monkeypatch.setattr(os, "uname", lambda: changed)
    assert getpass.getuser() == user
    assert platform.uname().node == host
    said = words(made_with(CPU))
    for word in said:
        for secret in (user, host, home, str(HERE), str(Path.cwd())):
            assert secret not in word
        assert not re.search(r"(^|[\s'\"=:])(/|~|[A-Za-z]:\\)\w", word), f"{word} looks like a path"


# The commit


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=clean,
    )
    return done.stdout.strip()


def repository(folder):
    """Make a folder a repository, with one commit of its files; return that commit."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    folder.mkdir(exist_ok=True)
    (folder / "readme").write_text("of this project")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "code")
    return git(folder, "rev-parse", "HEAD")


def pretend(monkeypatch, place):
    """Let the package lie in this folder."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "provenance.py").write_text("as it is")
    monkeypatch.setattr(provenance, "__file__", str(place / "provenance.py"))
    return place


def test_the_commit_is_that_of_the_packages_own_repository_which_stays_as_it_is(
    tmp_path, monkeypatch
):
    project = tmp_path / "project"
    place = pretend(monkeypatch, project / "src" / "weiss")
    head = repository(project)
    # The hook of another repository says that git is at work there.
    repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    index = (project / ".git" / "index").read_bytes()
    os.utime(place / "provenance.py", (1e9, 1e9))  # git would note it down
    assert made_with(CPU)["commit"] == head
    (project / "readme").write_text("something else changed")
    (place / "new.py").write_text("nobody knows it")
    assert made_with(CPU)["commit"] == head
    (place / "provenance.py").write_text("changed")
    assert made_with(CPU)["commit"] == f"{head}-changed"
    assert (project / ".git" / "index").read_bytes() == index
    git(project, "add", ".")
    assert made_with(CPU)["commit"] == f"{head}-changed"


@pytest.mark.parametrize(
    "place",
    [
        ".venv/lib/python3.12/site-packages/weiss",
        "weiss",
        "deep/er/src/weiss",
        "vendor/weiss",  # as deep as a checkout, but unknown to the repository
    ],
)
def test_the_commit_of_another_project_is_not_told(tmp_path, monkeypatch, place):
    repository(tmp_path)
    pretend(monkeypatch, tmp_path / place)
    assert "commit" not in made_with(CPU)


def test_without_a_repository_or_git_or_with_one_that_hangs_there_is_no_commit(
    tmp_path, monkeypatch
):
    pretend(monkeypatch, tmp_path / "src" / "weiss")
    assert "commit" not in made_with(CPU)
    (tmp_path / ".git").mkdir()  # not even a repository
    assert "commit" not in made_with(CPU)
    repository(tmp_path)

    def hangs(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", hangs)
        assert "commit" not in made_with(CPU)
    monkeypatch.setenv("PATH", "")
    assert "commit" not in made_with(CPU)


def test_a_machine_without_proc_still_has_a_cpu(monkeypatch):
    def gone(self, *arguments, **options):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    assert provenance._cpu_name()
    monkeypatch.setattr(Path, "read_text", lambda self: "nothing: of use\n")
    assert provenance._cpu_name() == platform.machine()


def test_a_library_that_is_not_there_is_not_named(monkeypatch):
    monkeypatch.setattr(provenance, "LIBRARIES", ("torch", "no-such-library"))
    assert list(made_with(CPU)["versions"]) == ["torch"]


WORDS = {
    "/home/me/runs/bench": "bench",
    "--out=/home/me/runs/bench/": "--out=bench",
    "/home/me//data": "data",
    "//server/me/data": "data",
    "/home/a,b/me/data": "data",
    "/home/a=b/me/data": "data",
    "/home/me/[x]/y": "y",
    "/home/me/x,/home/me/y": "x,y",
    "--set=data.root=/home/me/photos": "--set=data.root=photos",
    "backbone.weights=/data/resnet.safetensors": "backbone.weights=resnet.safetensors",
    'data.root="/home/me/x"': 'data.root="x"',
    "data.root = /home/me/my photos": "data.root = my photos",
    "files=['/home/me/a', '/home/me/b']": "files=['a', 'b']",
    "runs/bench": "runs/bench",
    "../data": "../data",
    "loss.beta=50,80": "loss.beta=50,80",
    "mf_cwms:delta=1/2": "mf_cwms:delta=1/2",
    "": "",
    "/": "/",
    "sqlite:////home/me/study.db": "sqlite:///study.db",
    "sqlite:///study.db": "sqlite:///study.db",
    "sqlite+pysqlite:////home/me/study.db": "sqlite+pysqlite:///study.db",
    "file:///home/me/a": "file://a",
    "https://example.org/a/weights.pth": "https://example.org/a/weights.pth",
    "--storage=postgresql://me:secret@host/db": "--storage=postgresql://me:...@host/db",
    "postgresql://me:se@cret@host/db": "postgresql://me:...@host/db",
    "postgresql://me:se/cret@host/db": "postgresql://me:...@host/db",
    "postgresql://me:se cret@host/db": "postgresql://me:...@host/db",
    "postgresql://me@host/db": "postgresql://me@host/db",
    "postgresql://me:secret@host/db?options=a@b": "postgresql://me:...@host/db?options=a@b",
    "postgresql://host/db?user=me&PASSWORD=secret": "postgresql://host/db?user=me&PASSWORD=...",
    "mysql://host/db?passwd=secret": "mysql://host/db?passwd=...",
    "postgresql://host/db?sslpassword=secret": "postgresql://host/db?sslpassword=...",
    "https://example.org/w.pth?token=secret": "https://example.org/w.pth?token=...",
    "postgresql://me@host/db?sslrootcert=/home/me/ca.pem": (
        "postgresql://me@host/db?sslrootcert=ca.pem"
    ),
}


@pytest.mark.parametrize(("word", "kept"), WORDS.items(), ids=list(WORDS))
def test_the_record_of_a_command_says_nothing_of_a_machines_folders_and_no_password(word, kept):
    assert shlex.split(recorded_command(["bench", word])) == ["weiss", "bench", kept]
