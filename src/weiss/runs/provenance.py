"""Provenance of a run: versions, the commit of the code, the machine, the command."""

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import torch

from weiss._version import __version__

LIBRARIES = ("torch", "numpy", "pillow", "accelerate", "pytorch-metric-learning")


def made_with(device: torch.device, num_processes: int = 1) -> dict[str, Any]:
    """Return code, libraries and machine of a run; nothing that names the user or a folder."""
    found: dict[str, Any] = {
        "weiss": __version__,
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name))},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "device": device_name(device),
        "processes": num_processes,
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    commit = _commit()
    if commit:
        found["commit"] = commit
    return found


def recorded_command(words: Sequence[str]) -> str:
    """Return a command line for the record, without passwords and folders of the machine.

    Of absolute paths the last part stays, since reports are shown to others.

    Example:
        >>> recorded_command(["train", "cub", "--root=/home/me/data"])
        'weiss train cub --root=data'
    """
    return shlex.join(["weiss", *map(_without_places, words)])


def _without_places(word: str) -> str:
    before = re.match(r"(?:[^/=:]*=\s*)*", word)
    key = before.group() if before else ""
    address = word[len(key) :]
    if "://" in address:
        return f"{key}{_without_secrets(address)}"
    address = re.sub(r"""(["'])(/[^"']*)\1""", lambda m: m[1] + _last(m[2]) + m[1], address)
    if address.startswith("/"):
        # A path may have commas in it; several paths are separated by a comma and a slash.
        address = ",".join(_last(path) for path in address.replace(",/", "\0/").split("\0"))
    return f"{key}{address}"


def _without_secrets(address: str) -> str:
    """Return an address without its password and the folders of this machine."""
    base, mark, query = address.partition("?")
    scheme, _, rest = base.partition("://")
    if scheme.startswith("sqlite") and rest.startswith("//"):
        rest = f"/{_last(rest)}"
    elif scheme == "file":
        rest = _last(rest)
    elif "@" in rest:
        user, _, host = rest.rpartition("@")
        name, colon, _ = user.partition(":")
        rest = f"{name}{':...' if colon else ''}@{host}"
    shown = []
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if re.search(r"passw|secret|token", name, re.IGNORECASE):
            value = "..."
        shown.append(f"{name}{equals}{_last(value) if value.startswith('/') else value}")
    return f"{scheme}://{rest}{mark}{'&'.join(shown)}"


def _last(path: str) -> str:
    return PurePosixPath(path).name or path


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    """Return the name of a device for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "CPU" if device.type == "cpu" else device.type


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """Return the commit the package's own code is at, if it lies in its repository."""
    here = Path(__file__).parent
    if not (here.parent.parent / ".git").exists():
        return None  # an environment, in the repository of another project

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        # A hook of another repository sets GIT_DIR.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment["GIT_OPTIONAL_LOCKS"] = "0"
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        # Fails for a copy inside another project, which does not track this file.
        git("ls-files", "--error-unmatch", "--", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
        return git("rev-parse", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
