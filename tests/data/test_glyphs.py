"""Glyphs: about a thousand characters, the same bytes everywhere, none that looks like another."""

import functools
import hashlib
import importlib.metadata
import sys
import unicodedata

import numpy as np
import PIL
import pytest

from weiss.data import glyphs

# For matplotlib's fonts and Pillow in the versions of constraints.txt.
PINNED = {
    True: "db579dc8cc7d0a84700f5a53c72349a62155ff458adc96648f8acf90a56ab058",
    False: "d80607fc19df132efc10ae3c64d054c9ca58aa5cd6501fad85cd74550079b982",
}


MODULE = sys.modules[glyphs.__module__]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The glyphs, moved and not moved; the drawings that both need are made once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_still", functools.cache(MODULE._still))
        return glyphs(jitter=True, cache=folder), glyphs(jitter=False, cache=folder)


@pytest.fixture(scope="module", params=[0, 1], ids=["moved", "still"])
def table(request, both):
    return both[request.param]


def test_there_are_about_a_thousand_classes_of_at_least_eight_images(table):
    assert 800 <= table.num_classes <= 1200
    assert table.class_sizes().min() >= 8
    assert table.source.pixels.shape == (len(table), 32, 32, 1)


def test_train_and_test_share_no_character(table):
    assert table.shared_classes() == []
    sizes = table.sizes()
    assert abs(sizes["train"][1] - sizes["test"][1]) <= 1


def test_every_image_has_ink_that_is_not_cut_off(table):
    pixels = table.source.pixels[..., 0]
    assert (pixels.max(axis=(1, 2)) > 100).all()
    border = np.concatenate(
        [pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], axis=1
    )
    assert (border.max(axis=1) > 0).mean() < 0.01


def test_letters_and_digits_are_there_and_composed_characters_are_not(both):
    characters = {name[-1] for name in both[0].class_names}
    assert set("ABCDEFGHKMNPQRSTUVWXYZ0123456789abdefghkmnrty") <= characters
    assert not [c for c in characters if unicodedata.decomposition(c)]


def test_look_alikes_stay_out(both):
    characters = {name[-1] for name in both[0].class_names}
    for same in ("A\u0391\u0410", "-\u2010\u2212", "o\u03bf\u043e"):
        assert len(characters & set(same)) <= 1, same


def test_no_two_images_of_a_class_are_the_same_drawing(both):
    still = both[1]
    for c in range(0, still.num_classes, 20):
        drawings = still.source.pixels[still.labels == c].reshape(-1, 1024)
        assert len(np.unique(drawings, axis=0)) == len(drawings)


def test_jitter_moves_every_image_and_changes_nothing_else(both):
    moved, still = both
    assert (moved.labels == still.labels).all()
    assert (moved.splits == still.splits).all()
    assert (moved.source.pixels != still.source.pixels).any(axis=(1, 2, 3)).mean() > 0.99
    ratio = moved.source.pixels.mean() / still.source.pixels.mean()
    assert 0.97 < ratio < 1.05


def few(monkeypatch):
    """Draw a few characters only, where it does not matter which: all of them take long."""
    characters = MODULE._characters(MODULE.matplotlib_fonts())
    often = [code for code, fonts in characters.items() if len(fonts) >= MODULE.MIN_FONTS]
    chosen = {code: characters[code] for code in often[:40]}
    monkeypatch.setattr(MODULE, "_characters", lambda fonts: chosen)


@pytest.mark.parametrize("jitter", [True, False])
def test_the_bytes_are_the_same_everywhere(both, jitter):
    if (importlib.metadata.version("matplotlib"), PIL.__version__) != ("3.11.2", "13.0.0"):
        pytest.skip("other versions draw other bytes")
    pixels = both[0 if jitter else 1].source.pixels
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == PINNED[jitter]


def test_they_are_drawn_once_and_again_if_the_file_is_damaged_or_the_seed_changes(
    tmp_path, monkeypatch
):
    few(monkeypatch)
    first = glyphs(cache=tmp_path)
    (file,) = (tmp_path / "glyphs").glob("*.npz")
    before = file.stat().st_mtime_ns
    glyphs(cache=tmp_path)
    assert file.stat().st_mtime_ns == before
    file.write_bytes(file.read_bytes()[:1000])
    again = glyphs(cache=tmp_path)
    assert file.stat().st_mtime_ns != before
    np.testing.assert_array_equal(again.source.pixels, first.source.pixels)
    other = glyphs(seed=1, cache=tmp_path)
    assert (other.source.pixels != first.source.pixels).any()
    assert (other.labels == first.labels).all()


def test_names_have_character_and_font(both):
    assert both[0].source.name(0) == "U+0021 ! in DejaVuSans"
    assert both[0].source.take(np.array([0])).name(0) == "U+0021 ! in DejaVuSans"


def test_many_small_classes_have_six_images_of_at_least_three_fonts(monkeypatch, tmp_path):
    characters = MODULE._characters(MODULE.matplotlib_fonts())
    rare = [code for code, fonts in characters.items() if 3 <= len(fonts) < MODULE.MIN_FONTS]
    chosen = {code: characters[code] for code in [*list(characters)[:40], *rare[:40]]}
    monkeypatch.setattr(MODULE, "_characters", lambda fonts: chosen)
    table = glyphs(many=True, cache=tmp_path)
    assert table.name == "glyphs_many"
    assert set(table.class_sizes()) == {6}
    assert table.num_classes > glyphs(cache=tmp_path).num_classes
    for c in range(table.num_classes):
        rows = np.flatnonzero(table.labels == c)
        fonts = {table.source.name(row).partition(" in ")[2] for row in rows}
        assert 3 <= len(fonts) <= 6
        assert len(np.unique(table.source.pixels[rows].reshape(6, -1), axis=0)) == 6
    with pytest.raises(ValueError, match="jitter must be True with many"):
        glyphs(many=True, jitter=False, cache=tmp_path)


@pytest.mark.slow
def test_there_are_more_than_two_thousand_small_classes(tmp_path):
    table = glyphs(many=True, cache=tmp_path)
    assert table.num_classes >= 2000
    assert table.shared_classes() == []
