"""Rows of a comparison that differ in a setting and not in the loss."""

import pytest

from weiss.comparing import carry_out, make_study, reality_check, traditional
from weiss.comparing.contenders import Contender, contenders_of, merged_losses
from weiss.runs import Run
from weiss.runs.summaries import by_repetition


def test_changes_belong_to_the_loss_unless_they_name_a_section():
    plain = Contender.from_text(" mf_cwms ")
    assert plain.text == plain.loss == plain.folder == "mf_cwms"
    assert (plain.title, plain.changes) == ("MFCWMS", {})
    changed = Contender.from_text("mf_cwms: delta=0.8 :train.batch_size= 30:loss.alpha=1e-3")
    assert changed.changes == {"loss.alpha": 0.001, "loss.delta": 0.8, "train.batch_size": 30}
    assert changed.text == "mf_cwms:alpha=0.001:delta=0.8:train.batch_size=30"
    assert changed.title == "MFCWMS, alpha 0.001, delta 0.8, train.batch_size 30"
    assert changed.folder == "mf_cwms_alpha-0.001_delta-0.8_train.batch_size-30"


SAME = [
    ("mf_cwms:delta=.80", "mf_cwms: loss . delta = 0.8"),
    ("ms:optim.name='sgd'", 'ms:optim.name="sgd"', "ms:optim.name=sgd"),
    ("ms:alpha=1:beta=2", "ms:beta=2:alpha=1"),
    ("ms:augment.area=[0.2,1.0]", "ms:augment.area=[ 0.20, 1.0 ]"),
    ("ms:train.compile=true",),
    ("ms:alpha=none",),
    ("ms:train.steps='7'",),
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_what_means_the_same_is_the_same(texts):
    found = {Contender.from_text(text).text for text in texts}
    assert len(found) == 1
    again = Contender.from_text(found.pop())
    assert again == Contender.from_text(texts[0])


def test_a_loss_can_have_fewer_seeds():
    fewer = Contender.from_text("mf_cwms:seeds=2:delta=0.8")
    assert fewer.seeds == 2
    assert fewer.text == "mf_cwms:delta=0.8:seeds=2"
    assert fewer == Contender.from_text("mf_cwms:delta=0.8")  # as it trains the same
    assert (fewer.folder, fewer.title) == ("mf_cwms_delta-0.8", "MFCWMS, delta 0.8")


def grown(old, new):
    return merged_losses(*({"losses": losses, "seeds": seeds} for losses, seeds in (old, new)))


def test_the_more_seeds_of_two_commands_count():
    assert grown((["ms:seeds=2", "cwms"], 9), (["cwms:seeds=3", "ms:seeds=4"], 9)) == [
        "ms:seeds=4",
        "cwms",
    ]
    assert grown((["ms:seeds=2"], 9), (["ms"], 9)) == ["ms"]
    assert grown((["ms:seeds=4"], 9), (["arcface", "ms:seeds=3"], 9)) == ["ms:seeds=4", "arcface"]
    # As many as a command says for all is a number too.
    assert grown((["cwms:seeds=2", "ms"], 10), (["cwms"], 3)) == ["cwms:seeds=3", "ms"]
    assert grown((["cwms"], 3), (["ms", "cwms:seeds=5"], 10)) == ["cwms:seeds=5", "ms"]
    assert grown((["cwms"], 3), (["cwms"], 10)) == ["cwms"]
    # A number that was said stays one, though the others have as many for now.
    assert grown((["cwms:seeds=2"], 4), (["cwms:seeds=4"], 4)) == ["cwms:seeds=4"]
    assert grown((["cwms:seeds=2"], 2), (["cwms"], 1)) == ["cwms:seeds=2"]
    assert merged_losses({"losses": ["ms"]}, {"losses": ["cwms"]}) == ["ms", "cwms"]


def test_a_row_with_fewer_seeds_has_fewer_runs(recipe):
    plan = traditional(recipe, ["ms", "cwms:seeds=1", "arcface:seeds=3"], seeds=2)
    keys = [unit.key for unit in plan.ready({})]
    assert plan.num_units == len(keys) == 2 + 2 + 1 + 3
    first = ["untrained/seed-0", "ms/seed-0", "cwms/seed-0", "arcface/seed-0"]
    assert keys == [*first, "untrained/seed-1", "ms/seed-1", "arcface/seed-1", "arcface/seed-2"]
    rows = {row["name"]: row for row in plan.rows({key: {"map_at_r": 0.5} for key in keys}, {})}
    assert rows["cwms"]["repetitions"] == [0]
    assert rows["arcface"]["repetitions"] == [0, 1, 2]


def test_a_comma_in_brackets_belongs_to_a_value():
    from weiss.cli.comparing import _names

    words = ["mf_cwms", "ms:augment.area=[0.2, 1.0]:alpha=1", "ms"]
    assert _names(", ".join(words)) == words
    assert _names(" , ") == _names(None) == []


def test_folders_are_names_of_files_and_each_has_its_own():
    texts = ["ms:optim.name=../../else", "ms:optim.name=..-..-else", f"ms:optim.name={'x' * 300}"]
    folders = [Contender.from_text(text).folder for text in texts]
    assert len(set(folders)) == 3
    assert not any("/" in folder or len(folder) > 100 for folder in folders)


WRONG = {
    "name": (["mf_cmws:delta=0.8"], "Did you mean 'mf_cwms'"),
    "no value": (["mf_cwms:delta"], "without a colon in a value; got 'mf_cwms:delta'"),
    "empty value": (["mf_cwms:delta="], "must be NAME or NAME:KEY=VALUE"),
    "empty": (["mf_cwms:"], "must be NAME or NAME:KEY=VALUE"),
    "nothing": ([], "at least one loss"),
    "twice": (["ms", "ms"], "each loss once; got 'ms' twice"),
    "same": (["ms:alpha=1", "ms:loss.alpha=1"], "each loss once; got 'ms:alpha=1' twice"),
    "key twice": (["ms:alpha=1:alpha=2"], "must give alpha once"),
    "another loss": (["ms:name=cwms"], "Write the other name in front of the colon"),
    "in disguise": (["ms: loss .name=cwms"], "Write the other name in front of the colon"),
    "other data": (["ms:data .name=cub"], "must not change data.name for one loss alone"),
    "other seed": (["ms:seed=3"], "must not change seed for one loss alone"),
    "protocol": (["ms:evaluate.on=held_out"], "must not change evaluate.on for one loss alone"),
    "network": (["ms:backbone.embedding_size=4"], "same network, evaluation and seeds: use --set"),
    "graphs": (["ms:train.graphs=false"], "must not change train.graphs for one loss alone"),
    "machine": (["ms:train.device=cpu"], "must not change train.device for one loss alone"),
    "section": (["ms:train=3"], "Write train.KEY=VALUE"),
    "no seeds": (["ms:seeds=0"], "seeds in --losses 'ms:seeds=0' must be a whole number of at"),
    "seeds twice": (["ms:seeds=2:seeds=3"], "must give seeds once"),
    "other seeds": (["ms:seeds=2", "ms:seeds=3"], "once; got 'ms:seeds=2' and 'ms:seeds=3'"),
    "a typo": (["ms:seed=3"], "seeds=N gives a loss N runs"),
}


@pytest.mark.parametrize(("losses", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_compete_is_refused(losses, message):
    with pytest.raises(ValueError, match=message):
        contenders_of(losses)


def test_a_setting_that_the_loss_does_not_have_is_refused_before_anything_begins(recipe):
    message = r"--losses 'mf_cwms:delat=0.8' cannot be trained: [^$]*Did you mean 'loss.delta'"
    with pytest.raises(ValueError, match=message):
        traditional(recipe, ["mf_cwms:delat=0.8"]).check()


def test_the_same_training_under_two_names_is_refused(recipe):
    usual = traditional(recipe, ["mf_cwms"]).variants[1].recipe
    for same in (f"mf_cwms:beta={usual.loss.arguments.get('beta', 80.0)}", "mf_cwms:reg_weight=0"):
        with pytest.raises(ValueError, match=rf"'{same}\.?0?' is the same as 'mf_cwms' here"):
            traditional(recipe, ["mf_cwms", same]).check()


def test_settings_are_searched_or_varied_in_one_place_only(recipe):
    with pytest.raises(ValueError, match="must be short names here; got 'ms:alpha=1'"):
        reality_check(recipe, ["ms:alpha=1"])
    with pytest.raises(ValueError, match="must be short names here"):
        make_study("classes", recipe, losses=["ms:alpha=1"]).check()
    plan = make_study("batch-size", recipe, losses=["ms:train.batch_size=4"])
    with pytest.raises(ValueError, match="which this study varies.*Use --values"):
        plan.check()


LOSSES = ["mf_cwms", "mf_cwms:delta=0.5", "ms:train.per_class=2"]


@pytest.fixture(scope="module")
def bench(recipe, tmp_path_factory):
    """A bench of one loss with two settings, and of one in other batches."""
    out = tmp_path_factory.mktemp("contenders") / "bench"
    return out, carry_out(traditional(recipe, LOSSES, seeds=2), out, quiet=True)


def test_every_setting_is_a_row_with_runs_of_its_own(bench):
    out, found = bench
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["untrained", "mf_cwms", "mf_cwms_delta-0.5", "ms_train.per_class-2"]
    changed = rows["mf_cwms_delta-0.5"]
    assert changed["title"] == "MFCWMS, delta 0.5"
    assert changed["loss"] == "mf_cwms"
    assert changed["changes"] == {"loss.delta": 0.5}
    assert changed["settings"]["delta"] == 0.5
    assert rows["mf_cwms"]["changes"] == {}
    assert rows["mf_cwms"]["settings"]["delta"] == 0.2
    assert changed["runs"] == ["mf_cwms_delta-0.5/seed-0", "mf_cwms_delta-0.5/seed-1"]
    assert Run(out / changed["runs"][0]).recipe()["loss"]["delta"] == 0.5
    assert changed["scores"]["map_at_r"] != rows["mf_cwms"]["scores"]["map_at_r"]
    assert Run(out / "ms_train.per_class-2" / "seed-1").recipe()["train"]["per_class"] == 2
    assert found["question"] == "Which loss, with which settings, gives the best embedding?"


def test_rows_are_tested_against_each_other_if_they_differ_in_one_thing(bench):
    _, found = bench
    pairs = {(each["first"], each["second"]) for each in found["tests"]}
    assert pairs == {("mf_cwms", "mf_cwms_delta-0.5")}


def test_the_best_epoch_is_tested_like_every_score(bench):
    _, found = bench
    tests = {each["metric"]: each for each in found["tests"]}
    assert set(tests) == {"map_at_r", "precision_at_1", "r_precision", "epoch"}
    rows = {row["name"]: row for row in found["rows"]}
    first, second = (rows[tests["epoch"][side]] for side in ("first", "second"))
    epochs = [by_repetition(row, "epoch") for row in (first, second)]
    expected = sum(epochs[0][seed] - epochs[1][seed] for seed in (0, 1)) / 2
    assert tests["epoch"]["difference"] == pytest.approx(expected)


def test_a_setting_can_be_added_later_and_what_is_the_same_cannot(bench, recipe):
    out, found = bench
    plan = traditional(recipe, ["mf_cwms:delta=0.20"], seeds=2)
    plan.check()  # there is nothing wrong with it alone
    with pytest.raises(ValueError, match="is the same as 'mf_cwms' here"):
        carry_out(plan, out, quiet=True)
    # Nothing has changed by it; in other words the same settings are those that are there.
    words = ["mf_cwms", "mf_cwms: loss.delta = .50", "ms:train.per_class=2"]
    again = carry_out(traditional(recipe, words, seeds=2), out, quiet=True)
    assert again["rows"] == found["rows"]
    more = carry_out(traditional(recipe, ["ms"], seeds=2), out, quiet=True)
    names = [row["name"] for row in more["rows"]]
    assert names == [*(row["name"] for row in found["rows"]), "ms"]
