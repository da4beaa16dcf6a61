"""Rows of a comparison that differ in a setting and not in the loss."""

import tomllib

import pytest

from weiss.protocols import carry_out, make_study, reality_check, traditional
from weiss.protocols.contenders import Contender, contenders_of
from weiss.protocols.scores import compared
from weiss.report.published import published_for_picture


def test_a_loss_alone_is_itself():
    plain = Contender.from_text(" mf_cwms ")
    assert (plain.text, plain.loss, plain.folder) == ("mf_cwms",) * 3
    assert plain.title == "MFCWMS"
    assert plain.changes == {}


def test_changes_belong_to_the_loss_unless_they_name_a_section():
    changed = Contender.from_text("mf_cwms: delta=0.8 :train.batch_size= 30:loss.alpha=1e-3")
    assert changed.changes == {
        "loss.delta": "0.8",
        "train.batch_size": "30",
        "loss.alpha": "1e-3",
    }
    assert changed.text == "mf_cwms:delta=0.8:train.batch_size=30:alpha=1e-3"
    assert Contender.from_text(changed.text) == changed
    assert changed.title == "MFCWMS, delta 0.8, train.batch_size 30, alpha 1e-3"
    assert changed.folder == "mf_cwms_delta-0.8_train.batch_size-30_alpha-1e-3"


def test_folders_stay_below_the_one_of_the_comparison():
    nasty = Contender.from_text("mf_cwms:backbone.weights=../../else where")
    assert "/" not in nasty.folder
    assert " " not in nasty.folder


WRONG = {
    "name": (["mf_cmws:delta=0.8"], "Did you mean 'mf_cwms'"),
    "no value": (["mf_cwms:delta"], "must read NAME or NAME:KEY=VALUE; got 'mf_cwms:delta'"),
    "empty value": (["mf_cwms:delta="], "must read NAME or NAME:KEY=VALUE"),
    "empty": (["mf_cwms:"], "must read NAME or NAME:KEY=VALUE"),
    "nothing": ([], "at least one loss"),
    "twice": (["ms", "ms"], "each loss once; got 'ms' twice"),
    "same": (["ms:alpha=1", "ms:loss.alpha=1"], "each loss once; got 'ms:alpha=1' twice"),
    "key twice": (["ms:alpha=1:alpha=2"], "must give alpha once"),
    "another loss": (["ms:name=cwms"], "must not change name for one loss alone"),
    "other data": (["ms:data.name=cub"], "must not change data.name for one loss alone"),
    "other seed": (["ms:seed=3"], "must not change seed for one loss alone"),
}


@pytest.mark.parametrize(("losses", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_compete_is_refused(losses, message):
    with pytest.raises(ValueError, match=message):
        contenders_of(losses)


def test_a_setting_that_the_loss_does_not_have_is_refused_before_anything_begins(recipe):
    with pytest.raises(ValueError, match="loss.delat is not a key.*Did you mean 'loss.delta'"):
        traditional(recipe, ["mf_cwms:delat=0.8"]).check()


def test_settings_are_searched_or_varied_in_one_place_only(recipe):
    with pytest.raises(ValueError, match="must be short names here; got 'ms:alpha=1'"):
        reality_check(recipe, ["ms:alpha=1"])
    with pytest.raises(ValueError, match="must be short names here"):
        make_study("classes", recipe, losses=["ms:alpha=1"]).check()
    plan = make_study("dimension", recipe, losses=["ms:backbone.embedding_size=4"])
    with pytest.raises(ValueError, match="which this study varies.*Use --values"):
        plan.check()


@pytest.fixture(scope="module")
def bench(recipe, tmp_path_factory):
    """A bench of one loss with two settings, and of one in other batches."""
    out = tmp_path_factory.mktemp("contenders") / "bench"
    losses = ["mf_cwms", "mf_cwms:delta=0.5", "ms:train.per_class=2:evaluate.on=held_out"]
    return out, carry_out(traditional(recipe, losses, seeds=2), out, quiet=True)


def test_every_setting_is_a_row_with_runs_of_its_own(bench):
    out, found = bench
    rows = {row["name"]: row for row in found["rows"]}
    held_out = "ms_train.per_class-2_evaluate.on-held_out"
    assert list(rows) == ["untrained", "mf_cwms", "mf_cwms_delta-0.5", held_out]
    changed = rows["mf_cwms_delta-0.5"]
    assert changed["title"] == "MFCWMS, delta 0.5"
    assert changed["loss"] == "mf_cwms"
    assert changed["changes"] == {"loss.delta": "0.5"}
    assert changed["settings"]["delta"] == 0.5
    assert rows["mf_cwms"]["changes"] == {}
    assert rows["mf_cwms"]["settings"]["delta"] == 0.2
    assert changed["runs"] == ["mf_cwms_delta-0.5/seed-0", "mf_cwms_delta-0.5/seed-1"]
    recipe = tomllib.loads((out / changed["runs"][0] / "recipe.toml").read_text())
    assert recipe["loss"]["delta"] == 0.5
    assert changed["scores"]["map_at_r"] != rows["mf_cwms"]["scores"]["map_at_r"]
    # One of them chose its epoch on held-out classes: its scores are those of the test set too.
    recipe = tomllib.loads((out / rows[held_out]["runs"][0] / "recipe.toml").read_text())
    assert (recipe["train"]["per_class"], recipe["evaluate"]["on"]) == (2, "held_out")
    assert "valid.map_at_r" in rows[held_out]["scores"]
    assert "valid.map_at_r" not in changed["scores"]


def test_settings_of_one_loss_are_tested_against_each_other(bench):
    _, found = bench
    pairs = {(each["first"], each["second"]) for each in found["tests"]}
    assert ("mf_cwms", "mf_cwms_delta-0.5") in pairs
    assert len(pairs) == 3


def test_a_setting_can_be_added_later(bench, recipe):
    out, found = bench
    losses = ["mf_cwms", "mf_cwms:delta=0.5", "ms:train.per_class=2:evaluate.on=held_out"]
    more = carry_out(traditional(recipe, [*losses, "ms"], seeds=2), out, quiet=True)
    assert [row["name"] for row in more["rows"][:-1]] == [row["name"] for row in found["rows"]]
    assert more["rows"][-1]["name"] == "ms"


def test_along_an_axis_only_one_thing_differs():
    def row(name, loss, changes, at):
        scores = {"map_at_r": {"values": [0.1, 0.2 + at]}}
        return {"name": name, "loss": loss, "changes": changes, "at": {"x": at}} | {
            "repetitions": [0, 1],
            "scores": scores,
        }

    rows = [row(f"a{at}", "a", {}, at) for at in (1, 2)]
    rows += [row(f"b{at}", "a", {"loss.delta": "0.8"}, at) for at in (1, 2)]
    pairs = {(each["first"], each["second"]) for each in compared(rows, ["map_at_r"])}
    assert pairs == {("a1", "a2"), ("b1", "b2"), ("a1", "b1"), ("a2", "b2")}


def test_the_papers_number_is_not_that_of_other_settings():
    row = {"loss": "mf_cwms", "scores": {}, "at": {}}
    rows = [{**row, "title": "MFCWMS"}, {**row, "title": "changed", "changes": {"loss.delta": "1"}}]
    found = published_for_picture({"kind": "traditional", "data": "cub", "rows": rows})
    assert list(found) == ["MFCWMS"]
