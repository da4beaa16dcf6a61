"""The bar appears after its patience, on a terminal only."""

import sys

from weiss.progress import track


def run(monkeypatch, capsys, *, terminal, patience):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    items = list(track(((1, item) for item in "abc"), 3, "counting", patience=patience))
    assert items == ["a", "b", "c"]
    return capsys.readouterr().err


def test_the_bar_shows_what_takes_long(monkeypatch, capsys):
    assert "counting" in run(monkeypatch, capsys, terminal=True, patience=-1)


def test_nothing_is_shown_for_what_is_quick_or_where_nobody_looks(monkeypatch, capsys):
    assert run(monkeypatch, capsys, terminal=True, patience=60) == ""
    assert run(monkeypatch, capsys, terminal=False, patience=-1) == ""
