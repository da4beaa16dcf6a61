"""The command line, as somebody types it: right, wrong, and quickly."""

import json
import os
import signal
import subprocess
import sys

import pytest
import typer
from miniature import write_cub, write_image
from PIL import Image
from tiny import begin, wait_until
from tiny import weiss as weiss_in_a_process
from typed import refused, said, weiss

from weiss.cli import app, completion
from weiss.cli.commands import PANELS
from weiss.cli.printing import print_comparison, print_json


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for c in range(5):
        for i in range(3):
            write_image(root / f"class{c}" / f"{i}.jpg", c, i)
    return root


def test_help_answers_at_once_and_without_torch():
    before = os.times()
    done = weiss_in_a_process("--help")
    after = os.times()
    assert done.returncode == 0
    assert "data" in done.stdout
    # Its own time, which does not depend on what else the machine does.
    used = [after[i] - before[i] for i in (2, 3)]  # of children: in user mode and in the system
    assert sum(used) < 3
    code = "import sys; from weiss import cli; print('torch' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_help_begins_with_train_and_shows_every_command_in_a_group():
    listed = said("--help")
    shown = [name for names in PANELS.values() for name in names]
    assert shown[0] == "train"
    places = [listed.index(f"\u2502 {name} ") for name in shown]
    assert places == sorted(places)
    hidden = {"join-in"}
    assert set(typer.main.get_command(app).commands) - hidden == set(shown)


def completed(words, monkeypatch):
    """Return what the shell offers for the last word of a command."""
    monkeypatch.setenv("_WEISS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"weiss {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    return weiss().stdout.split()


def test_the_tab_key_knows_recipes_losses_and_backbones(monkeypatch):
    assert completed("train cub_res", monkeypatch) == ["cub_resnet50"]
    assert completed("train --loss mf_c", monkeypatch) == ["mf_contrastive", "mf_cwms"]
    assert completed("train --backbone resnet50", monkeypatch) == ["resnet50", "resnet50_v1"]
    several = completed("bench traditional --losses cwms,proxy_", monkeypatch)
    assert several == ["cwms,proxy_nca", "cwms,proxy_anchor"]


def test_the_names_that_the_tab_key_knows_are_all_there_are():
    from weiss.backbones import BACKBONES
    from weiss.data import DATASETS
    from weiss.losses import LOSSES
    from weiss.runs import shipped_recipes

    assert set(completion.LOSSES) == set(LOSSES)
    assert set(completion.BACKBONES) == set(BACKBONES)
    assert set(completion.DATASETS) == set(DATASETS)
    assert set(completion.recipes("")) == {*shipped_recipes(), *DATASETS}


def test_the_version_is_the_packages():
    import weiss as package

    assert said("--version").strip() == package.__version__


def test_data_list_names_every_data_set():
    from weiss.data import DATASETS

    listed = said("data", "list")
    assert all(name in listed for name in DATASETS)


def test_checking_a_folder_says_what_is_in_it(photos):
    told = said("data", "check", photos)
    assert "photos: 15 items" in told
    assert "All right (lists, counts and every image)." in told


def test_checking_an_incomplete_set_fails_and_says_what_is_missing(tmp_path):
    folder = write_cub(tmp_path)
    done = weiss("data", "check", "cub", "--root", tmp_path)
    assert done.returncode == 1
    assert "Problem: train must hold 5,864 images of 100 classes" in done.stdout
    gone = next((folder / "images").rglob("*.jpg"))
    gone.unlink()
    message = refused("data", "check", "cub", "--root", tmp_path)
    assert gone.name in message
    assert "--allow-missing" in message
    said("data", "check", "cub", "--root", tmp_path, "--allow-missing")


def test_bad_images_fail_a_check_unless_they_are_skipped_and_listed(photos):
    (photos / "class1" / "2.jpg").write_bytes(b"")
    done = weiss("data", "check", photos)
    assert done.returncode == 1
    assert "class1/2.jpg: is empty" in done.stdout
    assert "class1/2.jpg: is empty" in said("data", "check", photos, "--skip-bad")


def test_names_and_messages_are_neither_markup_nor_commands_of_the_terminal(photos, capsys):
    (photos / "class1" / "[red]\x1b[2J\udce9.jpg").write_bytes(b"")
    done = weiss("data", "check", photos)
    assert "class1/[red]\ufffd[2J\ufffd.jpg: is empty" in done.stdout
    assert "\ufffd[/nowhere]: cannot be opened" in refused("search", "index", "\x1b[/nowhere]")
    trial = {"failed": "ValueError: got [/x] and [a]", "pruned": None}
    row = {"name": "ms", "title": "[ms]", "loss": "ms", "at": {}, "scores": {}, "trials": [trial]}
    print_comparison({"rows": [row], "tests": []}, photos)
    assert "[ms]: 1 of 1 trials failed, the first: ValueError: got [/x] and [a]" in (
        capsys.readouterr().out
    )


def test_a_sheet_is_drawn_also_of_data_that_are_wrong(photos, tmp_path):
    for path in (photos / "class1").glob("[12].jpg"):
        path.unlink()
    (photos / "class2" / "0.jpg").write_bytes(b"")
    assert weiss("data", "check", photos).returncode == 2
    out = tmp_path / "new" / "sheet.png"
    said("data", "show", photos, "--out", out, "--classes", 3, "--each", 2)
    with Image.open(out) as image:
        assert min(image.size) > 100


@pytest.mark.parametrize("place", ["beginning", "image"])
def test_ctrl_c_stops_without_a_traceback(photos, tmp_path, place):
    for i in range(100):  # enough for a process that decodes
        os.link(photos / "class0" / "0.jpg", photos / "class0" / f"more{i}.jpg")
    # A process that decodes never ends by itself: it hangs, and a file tells that it does.
    hang = f"lambda *_, **__: (open({str(tmp_path / 'hangs')!r}, 'w'), time.sleep(600))"
    child = {
        "beginning": f"import time; ({hang})(); ",
        "image": f"import time, PIL.Image; PIL.Image.open = {hang}; ",
    }[place]
    code = "import sys; from weiss import cli; from weiss._base import decoding; "
    code += "decoding._CHILD = sys.argv.pop(1) + decoding._CHILD; cli.main()"
    process = begin(
        [sys.executable, "-c", code, child, "data", "check", str(photos)],
        text=True,
        start_new_session=True,
        # In the background of a script Ctrl-C is ignored, by whoever is started from there too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: (tmp_path / "hangs").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_json_has_no_word_for_numbers_that_are_not_finite(capsys):
    print_json({"a": {"b": [float("nan"), 0.5]}, "c": float("-inf")})
    assert json.loads(capsys.readouterr().out) == {"a": {"b": [None, 0.5]}, "c": None}


WRONG = {
    "name": (("data", "check", "cbu"), "Did you mean 'cub'"),
    "root": (("data", "check", "cub"), "root must be the folder of cub"),
    "folder": (("data", "check", "cub", "--root", "/nowhere"), "weiss data prepare cub"),
    "prepare": (("data", "prepare", "cup", "--root", "/tmp/x"), "Did you mean 'cub'"),
    "split": (("data", "check", "glyphs", "--split", "clases"), "Did you mean 'classes'"),
    "option": (("data", "check", "glyphs", "--rooot", "x"), "No such option"),
    "command": (("dat",), "No such command"),
    "part": (("data", "show", "glyphs", "--out", "x.png", "--part", "tets"), "Did you mean 'test'"),
    "suffix": (("data", "show", "glyphs", "--out", "x.txt"), "--out must name a .png file"),
    "folder root": (("data", "check", ".", "--root", "x"), "root must be left out for a folder"),
    "number": (("train", "--epochs", "many"), "'many'"),
    "fraction": (("train", "--lr", "small"), "'small'"),
    "nothing": (("embed", "--out", "x"), "IMAGES must be given. For example: weiss embed photos/"),
    "zero": (("data", "show", "glyphs", "--out", "x.png", "--each", "0"), "each must be at least"),
}


def test_a_mistyped_folder_is_suggested(photos):
    assert "Did you mean 'photos'?" in refused("data", "check", "phots", cwd=photos.parent)


@pytest.mark.parametrize("kind", list(WRONG))
def test_a_wrong_command_gets_one_message_and_no_traceback(kind, tmp_path):
    arguments, message = WRONG[kind]
    assert message in refused(*arguments, cwd=tmp_path)


@pytest.mark.parametrize(
    "command", ["train", "index", "embed", "search", "classify", "report", "study"]
)
def test_the_usage_of_a_command_brackets_an_argument_once(command):
    usage = said(command, "--help").partition("[OPTIONS]")[2].splitlines()[0]
    assert "[[" not in usage
    assert "{[" not in usage
    assert usage.count("...") <= 1
