"""What a comparison would take: counted, told after the first training, and nothing is written."""

import pytest

from weiss.comparing import STUDIES, carry_out, forecast, make_study, reality_check, traditional
from weiss.comparing.forecast import Forecast
from weiss.runs import Run


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_trains_as_often_as_it_says(recipe, tmp_path, study):
    asked = make_study(study, recipe, losses=["mf_cwms"])
    done = {}  # every unit is counted as it becomes ready
    while ready := asked.ready(done):
        done |= {unit.key: {} for unit in ready}
    trained = [key for key in done if key.startswith("mf_cwms") and "/seed-" in key]
    assert asked.num_trainings == len(trained)
    found = forecast(asked, tmp_path / "none")
    assert (found.num_trainings, found.num_others) == (len(trained), len(done) - len(trained))


def test_a_reality_check_trains_every_fold_of_every_trial_and_repeat(recipe):
    asked = reality_check(recipe, ["mf_cwms", "ms"], trials=3, repeats=2, folds=4)
    folds = [
        (loss, kind, number, fold)
        for loss in ("mf_cwms", "ms")
        for kind, count in (("trial", 3), ("repeat", 2))
        for number in range(count)
        for fold in range(4)
    ]
    assert asked.num_trainings == len(folds)
    settings, ensembles, untrained = 2 * 3, 3 * 2, 4 * 2
    assert asked.num_units == len(folds) + settings + ensembles + untrained


@pytest.fixture(scope="module")
def begun(recipe, tmp_path_factory):
    """A comparison of which one of two seeds is finished."""
    out = tmp_path_factory.mktemp("begun") / "bench"
    carry_out(traditional(recipe, ["mf_cwms", "proxy_anchor"], seeds=1), out, quiet=True)
    return out


def test_the_time_left_is_that_of_the_finished_trainings_shared_by_the_workers(recipe, begun):
    asked = traditional(recipe, ["mf_cwms", "proxy_anchor"], seeds=7)
    took = [Run(begun / loss / "seed-0").result()["seconds"] for loss in asked.options["losses"]]
    for workers in (1, 4):
        found = forecast(asked, begun, workers=workers)
        assert (found.num_trainings, found.num_finished, found.num_others) == (14, 2, 7)
        assert found.seconds_left == pytest.approx(12 * sum(took) / 2 / workers)
    assert "2 trainings are finished" in found.in_words()
    assert "with 4 workers" in found.in_words()


def test_before_the_first_training_no_time_is_told_and_nothing_is_written(recipe, tmp_path):
    found = forecast(traditional(recipe, ["mf_cwms"], seeds=3), tmp_path / "new")
    assert found.seconds_left is None
    assert "3 trainings and 3 units without training. 0 trainings are finished." in found.in_words()
    assert "after the first" in found.in_words()
    assert not (tmp_path / "new").exists()


def test_one_is_not_many():
    one = Forecast(num_trainings=3, num_others=1, num_finished=1, seconds=(), workers=1)
    told = "3 trainings and 1 unit without training. 1 training is finished."
    assert one.in_words().startswith(told)


def test_another_comparison_in_the_folder_is_refused(recipe, begun):
    before = sorted(begun.rglob("*"))
    with pytest.raises(ValueError, match="it holds 'traditional'"):
        forecast(make_study("dimension", recipe), begun)
    with pytest.raises(ValueError, match="--workers must be a whole number of at least 1"):
        forecast(traditional(recipe, ["mf_cwms"]), begun, workers=0)
    assert sorted(begun.rglob("*")) == before
