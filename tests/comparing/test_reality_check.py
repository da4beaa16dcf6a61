"""The reality check as a plan: what can be done when, and what follows. No training."""

import sys

import pytest
from tiny import tiny_recipe

from weiss.comparing import reality_check


@pytest.fixture
def plan(recipe):
    def make(losses=("mf_cwms", "ms"), **options):
        usual = {"trials": 3, "repeats": 2, "sampler": "tpe"}  # which is much faster than "gp"
        return reality_check(recipe, losses, **(usual | options))

    return make


def value_of(key):
    """A made-up validation score, different for each trial and fold."""
    loss, trial, fold = key.split("/")
    return 0.3 + 0.01 * int(trial[-1]) + 0.001 * int(fold[-1]) + (0.1 if loss == "ms" else 0.0)


def outcome(unit, score=value_of, tmp=None):
    """What a unit would find."""
    last = unit.key.rpartition("/")[2]
    if last == "settings":
        return unit.work(tmp / unit.key)
    if last == "ensemble":
        scores = {"map_at_r": 0.5, "precision_at_1": 0.6, "r_precision": 0.55}
        return {"separated": scores, "concatenated": scores, "seconds": 1.0}
    if "/trial-" in unit.key:
        found = score(unit.key)
        return {"failed": found} if isinstance(found, str) else {"map_at_r": found, "seconds": 1.0}
    return {"test": {}, "map_at_r": 0.4, "seconds": 1.0}


def carried_out(plan, tmp_path, pick=lambda ready: ready[0], score=value_of):
    """Do units one by one as ``pick`` chooses among those ready; return results and the order."""
    done, order = {}, []
    while ready := plan.ready(done):
        unit = pick(ready)
        done[unit.key] = outcome(unit, score, tmp_path)
        order.append(unit.key)
    return done, order


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """A plan that is carried out: its results, and the order of its units."""
    asked = reality_check(recipe, ("mf_cwms", "ms"), trials=3, repeats=2, sampler="tpe")
    return asked, *carried_out(asked, tmp_path_factory.mktemp("finished"))


def test_everything_is_done_once_and_nothing_is_left(finished):
    asked, done, order = finished
    assert len(order) == len(set(order)) == asked.num_units
    for loss in ("mf_cwms", "ms"):
        for trial in range(3):
            keys = {f"{loss}/trial-{trial:03d}/fold-{fold}" for fold in range(4)}
            assert keys | {f"{loss}/trial-{trial:03d}/settings"} <= set(done)
        for repeat in range(2):
            assert f"{loss}/repeat-{repeat:02d}/ensemble" in done
    assert "untrained/repeat-01/ensemble" in done


def test_a_score_that_results_of_an_old_version_lack_is_left_out(finished, monkeypatch):
    asked, done, _ = finished
    module = sys.modules[type(asked).__module__]
    monkeypatch.setattr(module, "SCORES", (*module.SCORES, "of_a_later_version"))
    rows = asked.rows(done, {})
    assert all("separated.map_at_r" in row["scores"] for row in rows)
    assert not any("of_a_later_version" in name for row in rows for name in row["scores"])


@pytest.mark.parametrize("at_once", [1, 2])
def test_who_finishes_first_does_not_matter(plan, tmp_path, at_once):
    # What follows a search does not depend on it; "gp" uses every score.
    asked = plan(("ms",), at_once=at_once, repeats=1, trials=4, sampler="gp")
    first, last, middle = (
        carried_out(asked, tmp_path / name, pick=lambda ready, at=at: ready[int(at * len(ready))])
        for name, at in (("a", 0), ("b", 0.99), ("c", 0.5))
    )
    assert first[0] == last[0] == middle[0]
    assert first[1] != last[1]


def test_a_trial_waits_for_the_scores_it_follows_from(plan, tmp_path):
    def ready_after(at_once, *, trials_told):
        asked = plan(("ms",), at_once=at_once, trials=5)
        done = {}
        for _ in range(200):
            wanted = [u for u in asked.ready(done) if u.key.startswith("ms/trial-")]
            folds = [u for u in wanted if "/fold-" in u.key]
            told = [u for u in folds if int(u.key.split("-")[1][:3]) < trials_told]
            settings = [u for u in wanted if u.key.endswith("settings")]
            if not (told or settings):
                return {u.key.split("/")[1] for u in folds}
            for unit in told or settings[:1]:
                done[unit.key] = outcome(unit, tmp=tmp_path / f"{at_once}-{trials_told}")

    assert ready_after(1, trials_told=0) == {"trial-000"}
    assert ready_after(1, trials_told=2) == {"trial-002"}
    assert ready_after(2, trials_told=0) == {"trial-000", "trial-001"}
    assert ready_after(2, trials_told=1) == {"trial-001", "trial-002"}
    assert ready_after(9, trials_told=0) == {f"trial-00{n}" for n in range(5)}


def test_the_best_settings_are_trained_again(finished):
    asked, done, _ = finished
    best = asked.best("ms", done)
    assert best.number == 2  # value_of grows with the number
    assert best.value == pytest.approx(0.42 + 0.0015)
    recipe = asked.fold_recipe("ms", best.settings, 3, seed=7, test=True)
    for name, value in best.settings.items():
        assert getattr(recipe.loss, name) == value


def test_a_pretrained_network_is_measured_once(plan, tmp_path):
    asked = plan(("ms",))
    backbone = asked.recipe.backbone.model_copy(update={"weights": "imagenet"})
    asked.recipe = asked.recipe.model_copy(update={"backbone": backbone})
    done, order = carried_out(asked, tmp_path)
    of_it = [key for key in order if key.startswith("untrained/")]
    assert of_it == ["untrained/repeat-00/fold-0", "untrained/repeat-00/ensemble"]
    assert len(order) == asked.num_units
    row, *_ = asked.rows(done, {})
    assert (row["title"], row["repetitions"], row["runs"]) == ("pretrained", [0], of_it[:1])


def test_of_equal_trials_the_first_wins(plan, tmp_path):
    asked = plan(("ms",))
    done, _ = carried_out(asked, tmp_path, score=lambda key: 0.5)
    assert asked.best("ms", done).number == 0


def test_one_failed_fold_makes_a_trial_zero_and_its_other_folds_are_not_needed(plan, tmp_path):
    def score(key):
        return "NotFiniteError: nan" if key == "ms/trial-001/fold-1" else value_of(key)

    asked = plan(("ms",))
    done, order = carried_out(asked, tmp_path, score=score)
    assert "ms/trial-001/fold-2" not in order
    trial = asked.trials("ms", done)[1]
    assert (trial.value, trial.failed) == (0.0, "NotFiniteError: nan")
    row = next(row for row in asked.rows(done, {}) if row["name"] == "ms")
    assert row["trials"][1]["failed"] == "NotFiniteError: nan"
    assert len(row["trials"]) == 3
    assert row["best_trial"] == 2
    assert row["failed"] == {}


def test_a_loss_of_which_every_trial_failed_says_so_and_the_others_go_on(plan, tmp_path):
    asked = plan()
    done, order = carried_out(
        asked, tmp_path, score=lambda key: "nan" if key.startswith("ms/") else value_of(key)
    )
    assert not any(key.startswith("ms/repeat") for key in order)
    rows = {row["name"]: row for row in asked.rows(done, {})}
    assert "none of 3 trials has a score: nan" in rows["ms"]["failed"]["ms/search"]
    assert rows["ms"]["scores"] == {}
    assert rows["mf_cwms"]["scores"]["concatenated.map_at_r"]["mean"] == 0.5


def test_pruning_is_off_unless_asked_for_and_never_silent(plan, tmp_path):
    def score(key):
        return 0.01 if int(key.split("-")[1][:3]) == 4 else value_of(key)

    asked = plan(("ms",), trials=6)
    done, order = carried_out(asked, tmp_path / "all", score=score)
    assert sum(key.startswith("ms/trial-004/fold") for key in order) == 4
    assert all(trial.pruned is None for trial in asked.trials("ms", done))

    asked = plan(("ms",), trials=6, prune=True)
    done, order = carried_out(asked, tmp_path / "pruned", score=score)
    trial = asked.trials("ms", done)[4]
    assert [key for key in order if key.startswith("ms/trial-004/fold")] == ["ms/trial-004/fold-0"]
    assert trial.pruned.startswith("after 1 of 4 folds its mean 1.00 % was below the median")
    assert trial.value == 0.01
    assert trial.folds[1:] == [None, None, None]
    row = next(row for row in asked.rows(done, {}) if row["name"] == "ms")
    assert row["trials"][4]["pruned"] == trial.pruned
    assert row["best_trial"] != 4


def test_a_pruned_trial_cannot_win(plan, tmp_path):
    def score(key):
        # The fifth begins below the others' first fold, yet far above their mean.
        trial, fold = int(key.split("-")[1][:3]), int(key[-1])
        return 0.8 if trial == 4 else (0.9 if fold == 0 else 0.1)

    asked = plan(("ms",), trials=5, prune=True)
    done, _ = carried_out(asked, tmp_path, score=score)
    trials = asked.trials("ms", done)
    assert trials[4].pruned
    assert trials[4].value == 0.8 > max(trial.value for trial in trials[:4])
    assert asked.best("ms", done).number == 0


def test_a_fold_trains_as_the_protocol_says(plan, recipe):
    asked = plan(("ms", "mf_cwms", "arcface"))
    pairs = asked.fold_recipe("ms", {"alpha": 3.0}, 2, seed=5)
    assert (pairs.train.sampler, pairs.train.per_class) == ("per_class", 4)
    assert (pairs.evaluate.on, pairs.evaluate.folds, pairs.evaluate.fold) == ("held_out", 4, 2)
    assert (pairs.seed, pairs.loss.arguments["alpha"]) == (5, 3.0)
    assert pairs.evaluate.then_test is False  # the search never sees the test set
    classes = asked.fold_recipe("arcface", {"class_lr": 0.02}, 0, seed=5, test=True)
    assert (classes.train.sampler, classes.train.per_class) == ("per_class", 1)
    assert classes.optim.class_lr == 0.02
    assert classes.evaluate.then_test is True


def test_what_the_recipe_says_of_its_own_loss_is_not_used(stripes):
    recipe = tiny_recipe(stripes, loss__name="mf_cwms", loss__beta=33, train__batch_size=8)
    asked = reality_check(recipe, [" mf_cwms"], trials=1, repeats=1)
    assert "beta" not in asked.fold_recipe("mf_cwms", {}, 0, seed=0).loss.arguments


def test_networks_that_are_joined_begin_apart(plan, monkeypatch):
    from weiss.comparing import units

    seen = []
    monkeypatch.setattr(units, "training", lambda key, make, **_: seen.append(make().seed))
    list(plan(("ms",), trials=1, repeats=3)._repeats("ms", {}, {}))
    assert len(set(seen)) == 12
    assert 0 not in seen  # the seed of the search


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": ("mf_cwm",)}, "Did you mean 'mf_cwms'"),
        ({"losses": ()}, "must name at least one loss"),
        ({"losses": ("ms", "ms")}, "each loss once"),
        ({"trials": 0}, "--trials must be a whole number of at least 1; got 0"),
        ({"repeats": 0}, "--repeats must be"),
        ({"folds": 1}, "--folds must be a whole number of at least 2"),
        ({"at_once": 0}, "--trials-at-once must be"),
        ({"sampler": "grid"}, "--sampler must be"),
        ({"folds": 7}, "at least 14 training classes, two for each of 7 folds.*it has 12"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_begins(plan, options, message):
    with pytest.raises(ValueError, match=message):
        plan(**options).check()


def test_a_batch_with_more_classes_than_train_is_refused(stripes):
    recipe = tiny_recipe(stripes, train__batch_size=12)
    with pytest.raises(ValueError, match="a batch of 12 has 12 classes .* only 9 of 12 classes"):
        reality_check(recipe, ["mf_cwms"], trials=1).check()


def test_data_with_a_part_for_validation_are_refused(stripes, tmp_path):
    paths = sorted(path.relative_to(stripes) for path in stripes.rglob("*.png"))
    parts = {f"class{n}": "train" if n < 10 else "valid" if n < 14 else "test" for n in range(20)}
    listed = tmp_path / "list.csv"
    lines = [f"{path},{path.parent},{parts[str(path.parent)]}\n" for path in paths]
    listed.write_text("path,label,split\n" + "".join(lines))
    recipe = tiny_recipe(listed, data__root=stripes, data__split="given", train__batch_size=8)
    with pytest.raises(ValueError, match="no part 'valid' of its own"):
        reality_check(recipe, ["ms"], trials=1, repeats=1).check()
