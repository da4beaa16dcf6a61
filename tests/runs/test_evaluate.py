"""A saved run, measured again."""

import json
import shutil

import pytest
from tiny import write_stripes
from typed import weiss
from typer.testing import CliRunner

from weiss import cli
from weiss.runs import Run
from weiss.runs.evaluate import _recipe
from weiss.runs.toml_text import to_toml
from weiss.training import evaluate_run


@pytest.fixture
def evaluate(capsys):
    """Run ``weiss evaluate`` as the command line does, in this process."""

    def one(*words):
        done = CliRunner().invoke(cli.app, ["evaluate", *map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout

    return one


def test_a_run_measured_again_gives_its_result_as_json_and_as_a_table(finished, evaluate):
    found = json.loads(evaluate(finished, "--json", "--device", "cpu"))
    result = Run(finished).result()
    assert found["queries"] == 24
    assert found == {name: result[name] for name in found}
    said = evaluate(finished, "--device", "cpu")
    row = next(line for line in said.splitlines() if line.startswith("map_at_r"))
    assert f"{100 * result['map_at_r']:.2f}" in row
    assert " to " in row


def test_every_part_of_the_data_can_be_measured(finished, evaluate):
    found = json.loads(evaluate(finished, "--split", "train", "--json"))
    assert found["queries"] == 36
    assert "nmi" in json.loads(evaluate(finished, "--clustering", "--json"))
    with pytest.raises(ValueError, match="'valid' is none: it has train, test"):
        evaluate(finished, "--split", "valid")


def test_all_images_of_another_folder_are_measured(finished, evaluate, tmp_path):
    other = write_stripes(tmp_path / "other", num_classes=4, per_class=3)
    found = json.loads(evaluate(finished, "--data", other, "--json"))
    assert found["queries"] == 12
    # The same images as the run's own give the same numbers, whatever they are called.
    own = tmp_path / "own"
    facts = Run(finished).model_facts()
    source = json.loads((finished / "result.json").read_text())["data"]
    for number in range(10):
        if f"class{number}" not in facts["class_names"]:
            shutil.copytree(f"{source}/class{number}", own / f"renamed{number}")
    found = json.loads(evaluate(finished, "--data", own, "--json"))
    result = Run(finished).result()
    assert found == {name: result[name] for name in found}


def test_other_images_are_decoded_as_those_of_the_run(finished, tmp_path):
    copied = Run(shutil.copytree(finished, tmp_path / "run"))
    nested = copied.recipe()
    nested["data"] |= {"side": 40, "scaled_decoding": True}
    copied.write_recipe(to_toml(nested))
    other = write_stripes(tmp_path / "other", num_classes=4, per_class=3)
    for run, how in ((Run(finished), ("auto", False)), (copied, (40, True))):
        data = _recipe(run, str(other), None, ()).data
        assert (data.side, data.scaled_decoding) == how


@pytest.mark.parametrize(
    ("splits", "queries"),
    [
        (("test", "train", "train"), 20),
        (("query", *["gallery"] * 5), 10),
        (("query", "gallery", "gallery", "test", "test"), 12),
        ((), 60),
    ],
    ids=["test", "query and gallery", "all three", "none"],
)
def test_of_a_list_the_part_to_measure_is_measured(
    finished, evaluate, stripes, tmp_path, splits, queries
):
    listed, rows = tmp_path / "list.csv", ["path,label,split" if splits else "path,label"]
    for number, path in enumerate(sorted(stripes.rglob("*.png"))):
        split = f",{splits[number % len(splits)]}" if splits else ""
        rows.append(f"{path},{path.parent.name}{split}")
    listed.write_text("\n".join(rows) + "\n")
    assert json.loads(evaluate(finished, "--data", listed, "--json"))["queries"] == queries


def test_broken_images_are_left_out_when_asked(finished, evaluate, tmp_path):
    other = write_stripes(tmp_path / "other", num_classes=3, per_class=3)
    (other / "class1" / "1.png").write_bytes(b"")
    with pytest.raises(ValueError, match="1.png"):
        evaluate(finished, "--data", other)
    with pytest.warns(UserWarning, match="1.png"):
        said = evaluate(finished, "--data", other, "--skip-bad", "--json")
    assert json.loads(said)["queries"] == 8


def test_a_run_is_left_as_it_was(finished, stripes):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    evaluate_run(finished, data=str(stripes), device="cpu")
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_on_the_command_line_a_mistyped_run_is_one_message(finished):
    done = weiss("evaluate", finished.with_name("finishd"))
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "RUN must be the folder of a run, which holds recipe.toml" in said
    assert "Did you mean 'finished'?" in said
    assert "Traceback" not in done.stderr


def test_what_is_not_there_is_said(finished, evaluate, tmp_path):
    with pytest.raises(ValueError, match="data must be one of .* which is none of these"):
        evaluate(finished, "--data", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="a list of images must exist"):
        evaluate(finished, "--data", tmp_path / "nowhere.csv")


def test_data_that_have_moved_are_measured_where_they_are(finished, stripes, tmp_path):
    shutil.copytree(stripes, tmp_path / "moved")
    there = f"data.name={tmp_path / 'moved'}"
    again = evaluate_run(finished, overrides=[there], device="cpu").summary()
    assert again["map_at_r"] == Run(finished).result()["map_at_r"]
    with pytest.raises(ValueError, match="'gone' is none, seen from this folder.* --set data.name"):
        evaluate_run(finished, overrides=["data.name=gone"])
    with pytest.raises(ValueError, match="evaluate.sizes is not a key of a recipe"):
        evaluate_run(finished, overrides=["evaluate.sizes=3"])
