"""The options of the scripts on glyphs; pages tell what the kept rows of their runs say."""

import csv
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "examples"
CONVERGENCE = ROOT / "docs" / "convergence.md"
SEVERAL_LABELS = ROOT / "docs" / "several_labels.md"
FLUCTUATIONS = ROOT / "docs" / "fluctuations.md"
BATCHES = {
    "8 a character": "two_attributes.csv",
    "8 a character, `--average samples`": "two_attributes_samples.csv",
    "4 a character, `--per-class 4`": "two_attributes_4_a_character.csv",
    "any, `--shuffled`": "two_attributes_shuffled.csv",
    "any, `--shuffled --average samples`": "two_attributes_shuffled_samples.csv",
}


@pytest.fixture
def script(monkeypatch):
    """A script by its name, as a module."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module


@pytest.fixture
def run(script, monkeypatch):
    """Call the main function of a script with words of a command line."""

    def call(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        script(name).main()

    return call


def rows_of(name):
    with (KEPT / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("convergence", "--seeds -1", "--seeds"),
        ("convergence", "--seeds 1 1", "--seeds: each once; got 1 1"),
        ("convergence", "--epochs 0", "--epochs: a whole number, 1 or more; got '0'"),
        ("convergence", "--epochs 1.5", "--epochs: a whole number, 1 or more; got '1.5'"),
        ("convergence", "--characters 1", "--characters: a whole number, 2 or more; got '1'"),
        ("convergence", "--out {file}", "--out: a folder that can be written to; "),
        ("convergence", "--rows {file}/x.csv", "--rows: a folder that can be written to; "),
        ("convergence", "--rows {folder}", "--rows: the name of a file; "),
        ("settling", "--out {file}", "--out must be a folder that can be written to; "),
        ("fluctuations", "--seeds -1", "--seeds"),
        ("fluctuations", "--seeds 0 0", "--seeds: each once; got 0 0"),
        ("fluctuations", "--epochs 0", "--epochs: a whole number, 1 or more; got '0'"),
        ("fluctuations", "--characters 0", "--characters: a whole number, 2 or more; got '0'"),
        ("fluctuations", "--characters 1", "--characters: a whole number, 2 or more; got '1'"),
        ("fluctuations", "--characters 15", "--characters: a batch has 16 of them; got 15"),
        ("two_attributes", "--seeds two", "--seeds: a whole number, 0 or more; got 'two'"),
        ("two_attributes", "--per-class 0", "--per-class: a whole number, 1 or more; got '0'"),
        ("two_attributes", "--per-class 7", "--per-class: must divide the batch size, 64"),
        ("two_attributes", "--per-class 128", "--per-class: must divide the batch size, 64"),
        ("two_attributes", "--per-class 4 --characters 15", "has 16 characters then"),
        ("two_attributes", "--per-class 4 --shuffled", "not allowed with argument"),
        ("two_attributes", "--average both", "invalid choice: 'both'"),
    ],
)
def test_an_option_without_sense_is_refused_in_words(run, capsys, tmp_path, name, words, said):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as stopped:
        run(name, *words.format(file=file, folder=tmp_path).split())
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out  # no work was done


@pytest.mark.parametrize("name", ["convergence", "fluctuations"])
def test_more_characters_than_there_are_are_refused(run, capsys, name):
    with pytest.raises(SystemExit, match="there are 482 characters to train with, 5000 were asked"):
        run(name, "--characters", 5000)
    assert not capsys.readouterr().out


def test_what_is_given_holds_beside_quick(script, monkeypatch, tmp_path):
    module = script("few_glyphs")

    def options(*words):
        monkeypatch.setattr(sys, "argv", ["any.py", "--out", str(tmp_path), *words])
        parser = module.options_of("About.", characters=120, epochs=12)
        found = module.options_from(parser, characters=12, epochs=2, seeds=[0])
        return found.characters, found.epochs, found.seeds

    assert options() == (120, 12, [0, 1, 2])
    assert options("--quick") == (12, 2, [0])
    assert options("--quick", "--epochs", "7", "--seeds", "3", "4") == (12, 7, [3, 4])


@pytest.mark.parametrize(
    ("words", "average", "per_class"),
    [
        ("", "classes", 8),
        ("--average samples", "samples", 8),
        ("--per-class 16", "classes", 16),
        ("--shuffled", "classes", None),
    ],
)
def test_batches_and_average_are_as_asked(
    run, script, monkeypatch, tmp_path, words, average, per_class
):
    module = script("two_attributes")
    asked = []

    def recorded(what, name):
        return lambda *given, **named: asked.append(named[name]) or what(*given, **named)

    monkeypatch.setattr(module, "train", lambda *_: None)
    monkeypatch.setattr(module, "attribute_rows", lambda *_: None)
    monkeypatch.setattr(module, "make_loss", recorded(module.make_loss, "average"))
    monkeypatch.setattr(module, "batches_of", recorded(module.batches_of, "per_class"))
    few = ["--characters", 8, "--epochs", 1, "--seeds", 3, "--out", tmp_path]
    run("two_attributes", *few, *words.split())
    assert asked == [average, per_class] * 3


@pytest.mark.parametrize("name", ["convergence", "two_attributes"])
def test_rows_have_all_seeds_and_the_table_shows_them(
    run, script, monkeypatch, tmp_path, capsys, name
):
    kept = tmp_path / "new" / "rows.csv"
    drawing = {"convergence": "residuals", "two_attributes": "attribute_rows"}[name]
    monkeypatch.setattr(script(name), drawing, lambda *_, **__: None)
    few = ["--characters", 8, "--epochs", 1, "--out", tmp_path, "--rows", kept]
    run(name, *few, "--seeds", 0, 4)
    with kept.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["seed"] for row in rows} == {"0", "4"}
    table = script(name).table(rows)
    assert "\n".join(table) in capsys.readouterr().out
    assert all(cell.count(",") == 1 for cell in table[-1].strip("|").split("|")[2:])


@pytest.mark.parametrize(
    ("name", "page"), [("convergence", CONVERGENCE), ("two_attributes", SEVERAL_LABELS)]
)
def test_a_table_of_a_page_is_that_of_the_kept_rows(script, name, page):
    rows = rows_of(f"{name}.csv")
    assert {row["seed"] for row in rows} == {"0", "1", "2"}
    assert "\n".join(script(name).table(rows)) in page.read_text()


def test_the_tables_of_the_correction_are_those_of_the_kept_rows(script):
    rows = rows_of("fluctuations.csv")
    trained = {}
    for row in rows:
        if row["part"] == "glyphs":
            trained.setdefault((row["loss"], row["trained_with"]), []).append(row["seed"])
    assert len(trained) == 8
    assert all(seeds == ["0", "1", "2"] for seeds in trained.values())
    page = FLUCTUATIONS.read_text()
    tables = script("fluctuations").tables(rows)
    assert [len(lines) for lines in tables] == [6, 6, 10, 4, 6]
    for lines in tables:
        assert "\n".join(lines) in page


def test_rows_of_the_correction_have_all_seeds_and_the_tables_show_them(
    run, script, monkeypatch, tmp_path, capsys
):
    module = script("fluctuations")
    kept = tmp_path / "new" / "rows.csv"
    monkeypatch.setattr(module, "train", lambda *_, **__: None)
    monkeypatch.setattr(module, "corrections", lambda *_, **__: None)
    monkeypatch.setattr(module, "SPREADS", (0.1,))
    monkeypatch.setattr(module, "CLASS_SIZES", (2,))
    monkeypatch.setattr(module, "DIMENSIONS", (2,))
    monkeypatch.setattr(module, "TITLES", {"cwms": "CWMS"})
    monkeypatch.setattr(module, "LABELS", {("cwms", "corrected"): "corrected"})
    run("fluctuations", "--characters", 16, "--seeds", 0, 4, "--out", tmp_path, "--rows", kept)
    with kept.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["seed"] for row in rows if row["part"] == "glyphs"} == {"0", "4"}
    assert {row["part"] for row in rows} == {"spread", "samples", "dimensions", "glyphs"}
    told = capsys.readouterr().out
    for lines in module.tables(rows):
        assert "\n".join(lines) in told
    scored = module.score_table(rows)[-1]
    assert all(cell.count(",") == 1 for cell in scored.strip("|").split("|")[1:])


def test_the_table_of_batches_is_that_of_the_kept_rows(script):
    module = script("two_attributes")
    for title, name in BATCHES.items():
        rows = rows_of(name)

        def cell(trained_on, score, rows=rows):
            found = [float(row[score]) for row in rows if row["trained_on"] == trained_on]
            assert len(found) == 3
            return ", ".join(f"{value:.1f}" for value in found)

        cells = [
            title,
            cell(module.WITHIN, "family_map_at_r"),
            cell("both", "character_map_at_r"),
            cell("character", "character_map_at_r"),
        ]
        assert f"| {' | '.join(cells)} |" in SEVERAL_LABELS.read_text()
