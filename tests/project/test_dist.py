"""The archives of `make dist` hold what Weiss needs, and the wheel works without the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `make dist` builds of its source archive."""
    pytest.importorskip("build", reason="`make dist` needs the extra `dev`")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stdout + done.stderr:
        pytest.skip("hatchling cannot be installed here")
    assert done.returncode == 0, done.stdout + done.stderr
    (_,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel; its dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([scripts / "python", "-m", "pip", "install", "--no-deps", wheel], check=True)
    own = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = run(scripts / "python", "-c", own, cwd=folder).stdout.strip()
    # Its own packages come first in sys.path, so weiss is that of the wheel.
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


def run(*command, cwd):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True
    )


def test_the_wheel_made_of_the_source_archive_holds_every_file_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as opened:
        packed = opened.namelist()
    assert not [name for name in packed if not name.startswith("weiss")]
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in (source / "weiss").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"weiss/py.typed", "weiss/runs/recipes/glyphs.toml"} <= ours
    assert ours == {name for name in packed if name.startswith("weiss/")}


def test_the_wheel_alone_shows_its_help_and_trains(installed, tmp_path):
    where = run(installed / "python", "-c", "import weiss; print(weiss.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent), where.stderr
    told = run(installed / "weiss", "--help", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "train" in told.stdout
    small = ("train.epochs=1", "train.device=cpu", "backbone.widths=[4]", "schedule.ramp_epochs=0")
    settings = [word for each in small for word in ("--set", each)]
    done = run(installed / "weiss", "train", "--out", "run", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()
