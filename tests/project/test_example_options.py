"""The options of the scripts; pages tell what the kept rows of their runs say."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "examples"
PAGES = {
    "convergence": ROOT / "docs" / "convergence.md",
    "two_attributes": ROOT / "docs" / "several_labels.md",
    "fluctuations": ROOT / "docs" / "fluctuations.md",
}
BATCHES = {
    "8 a character": "two_attributes.csv",
    "8 a character, `--average samples`": "two_attributes_samples.csv",
    "4 a character, `--per-class 4`": "two_attributes_4_a_character.csv",
    "any, `--shuffled`": "two_attributes_shuffled.csv",
    "any, `--shuffled --average samples`": "two_attributes_shuffled_samples.csv",
}


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def nothing(*_, **__):
    """Stands for what takes long."""


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
        ("demo", "--out {file}", "--out must be a folder that can be made; "),
        ("demo", "--out {folder} --epochs 0", "train.epochs must be a whole number of at least 1"),
        ("fluctuations", "--characters 15", "--characters: a batch has 16 of them; got 15"),
        ("two_attributes", "--per-class 0", "--per-class: a whole number, 1 or more; got '0'"),
        ("two_attributes", "--per-class 7", "--per-class: must divide the batch size, 64"),
        ("two_attributes", "--per-class 4 --characters 15", "has 16 characters then"),
        ("two_attributes", "--per-class 4 --shuffled", "not allowed with argument"),
    ],
)
def test_an_option_without_sense_is_refused_in_words(
    run_example, capsys, tmp_path, name, words, said
):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as stopped:
        run_example(name, *words.format(file=file, folder=tmp_path).split())
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out  # no work was done


def test_more_characters_than_there_are_are_refused(run_example, capsys):
    with pytest.raises(SystemExit, match="there are 482 characters to train with, 5000 were asked"):
        run_example("convergence", "--characters", 5000)
    assert not capsys.readouterr().out


def test_what_is_given_holds_beside_quick(example, monkeypatch, tmp_path):
    module = example("few_glyphs")

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
    run_example, example, tmp_path, words, average, per_class
):
    module = example("two_attributes")
    asked = []

    def recorded(what, name):
        return lambda *given, **named: asked.append(named[name]) or what(*given, **named)

    replaced = {"train": nothing, "attribute_rows": nothing}
    replaced["make_loss"] = recorded(module.make_loss, "average")
    replaced["batches_of"] = recorded(module.batches_of, "per_class")
    few = ["--characters", 8, "--epochs", 1, "--seeds", 3, "--out", tmp_path]
    run_example("two_attributes", *few, *words.split(), **replaced)
    assert asked == [average, per_class] * 3


FEW = {
    "convergence": {"residuals": nothing},
    "two_attributes": {"train": nothing, "attribute_rows": nothing},
    "fluctuations": {
        "train": nothing,
        "corrections": nothing,
        "SPREADS": (0.1,),
        "CLASS_SIZES": (2,),
        "DIMENSIONS": (2,),
        "TITLES": {"cwms": "CWMS"},
        "LABELS": {("cwms", "corrected"): "corrected"},
    },
}
"""What is left out or made short in each script."""


@pytest.mark.parametrize("name", FEW)
def test_rows_have_all_seeds_and_the_tables_show_them(run_example, example, tmp_path, name):
    kept = tmp_path / "new" / "rows.csv"
    options = ["--characters", 16, "--epochs", 1, "--out", tmp_path, "--rows", kept]
    said = run_example(name, *options, "--seeds", 0, 4, **FEW[name])
    rows = rows_of(kept)
    assert {row["seed"] for row in rows} - {""} == {"0", "4"}
    tables = example(name).tables(rows)
    assert all("\n".join(lines) in said for lines in tables)
    scores = tables[3] if name == "fluctuations" else tables[0]
    assert all(cell.count(",") == 1 for cell in scores[-1].strip("|").split("|")[2:])


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_the_tables_of_a_page_are_those_of_the_kept_rows(example, name, page):
    rows = rows_of(KEPT / f"{name}.csv")
    assert {row["seed"] for row in rows} - {""} == {"0", "1", "2"}
    for lines in example(name).tables(rows):
        assert "\n".join(lines) in page.read_text()


def test_the_table_of_batches_is_that_of_the_kept_rows(example):
    module = example("two_attributes")
    for title, name in BATCHES.items():
        rows = rows_of(KEPT / name)

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
        assert f"| {' | '.join(cells)} |" in PAGES["two_attributes"].read_text()
