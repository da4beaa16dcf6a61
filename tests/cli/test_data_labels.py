"""`weiss data check --run`: wrong labels are found, shown and listed, without an index."""

import json
import shutil

import pytest
from glyph_catalogue import glyph_catalogue, write_glyphs
from typed import refused, said


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory):
    """A folder of 12 characters with 8 pictures each, of which five lie in a wrong folder."""
    folder = write_glyphs(tmp_path_factory.mktemp("wrong") / "photos", num_classes=12)
    classes = sorted(folder.iterdir())
    planted = set()
    for number in range(5):
        wrong = classes[(number + 6) % 12] / f"wrong{number}.png"
        shutil.move(classes[number] / f"{number}.png", wrong)
        planted.add(f"{wrong.parent.name}/{wrong.name}")
    return folder, planted


def test_planted_wrong_labels_are_listed_and_shown(mislabelled, tmp_path):
    folder, planted = mislabelled
    page = tmp_path / "page.html"
    check = ("data", "check", folder, "--run", glyph_catalogue() / "run", "--device", "cpu")
    found = json.loads(said(*check, "--json", "--html", page))
    labels = found["labels"]
    named = [each["name"] for each in labels["doubtful"]]
    assert planted <= set(named)
    assert planted & set(named[:5])  # the clearest come first
    assert len(named) < 30
    assert sum(part["images"] for part in found["splits"].values()) == labels["measured"] == 96
    assert labels["trained_on"] == []
    text = page.read_text()
    assert "<title>Doubtful labels in photos</title>" in text
    assert text.count("<h2>") == len(named)
    assert all(name in text for name in planted)
    lines = said(*check)
    assert "Doubtful labels, the clearest first:" in lines
    assert named[0] in lines
    assert "All right" not in lines
    end = "labels are doubtful, see above; no problem in lists, counts and every image."
    assert lines.splitlines()[-1] == f"{len(named)} {end}"
    assert list(tmp_path.iterdir()) == [page]


def test_a_page_needs_a_run(mislabelled, tmp_path):
    assert "Add --run RUN" in refused("data", "check", mislabelled[0], "--html", tmp_path / "a")
    assert "is a folder" in refused(
        "data", "check", mislabelled[0], "--run", glyph_catalogue() / "run", "--html", tmp_path
    )
