"""A comparison from its first unit to its table, in one process; failures, growth, damage."""

import json
import shutil
from pathlib import Path

import pytest
from compared import QUICK, small_check, summary_of, table, when_done
from tiny import TIMES, tiny_recipe, without_times

from weiss.comparing import carry_out, current_summary, reality_check, traditional, units
from weiss.comparing.folder import join, read_plan
from weiss.runs import Run
from weiss.training import NotFiniteError, measure_untrained

NUM_IMAGES = 80

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_bench_leaves_a_complete_table(undisturbed):
    out, found = undisturbed
    assert found["is_complete"]
    assert found["num_done"] == found["num_units"] == 18
    assert [row["title"] for row in found["rows"]] == ["untrained", "MS"]
    for row in found["rows"]:
        for how in ("separated", "concatenated"):
            for name in ("map_at_r", "precision_at_1", "r_precision"):
                score = row["scores"][f"{how}.{name}"]
                assert len(score["values"]) == 2
                assert score["low"] <= score["mean"] <= score["high"]
    assert found == summary_of(out)


def test_separated_is_the_mean_of_the_folds_and_concatenated_all_of_them(undisturbed):
    from weiss.evaluation import concatenate_embeddings, retrieval_metrics
    from weiss.training import embed_runs

    out, found = undisturbed
    runs = [out / "ms" / "repeat-01" / f"fold-{fold}" for fold in range(2)]
    tested = [Run(run).result()["test"]["map_at_r"] for run in runs]
    scores = found["rows"][1]["scores"]
    assert scores["separated.map_at_r"]["values"][1] == pytest.approx(sum(tested) / 2)
    embedded = embed_runs(runs, split="test")
    whole = concatenate_embeddings([each.embeddings for each in embedded])
    assert whole.shape[1] == 2 * 16
    metrics = retrieval_metrics(whole, embedded[0].table.labels)
    assert scores["concatenated.map_at_r"]["values"][1] == pytest.approx(metrics["map_at_r"])


def test_trials_never_see_the_test_set_and_leave_no_network(undisturbed):
    out, _ = undisturbed
    for kind, is_repeat in (("trial", False), ("repeat", True)):
        for run in out.glob(f"ms/{kind}-*/fold-*"):
            assert ("test" in Run(run).result()) == is_repeat
            assert (run / "model.safetensors").exists() == is_repeat
            assert (run / "test_embeddings.safetensors").exists() == is_repeat
    assert not list(out.glob("*/*/*/state"))


def test_doing_it_again_does_nothing_again(undisturbed, copy, recipe):
    before = when_done(copy)
    assert len(before) == 18
    assert carry_out(small_check(recipe), copy, quiet=True) == undisturbed[1]
    assert when_done(copy) == before


def test_a_finished_unit_redone_is_bit_identical(undisturbed, copy, recipe):
    from weiss._base.tensor_files import read_tensors

    out, found = undisturbed
    redone = ["ms/trial-001/fold-1", "ms/repeat-01/fold-0", "ms/trial-001/settings"]
    for key in [*redone, "ms/repeat-01/ensemble"]:
        shutil.rmtree(copy / key)
    before = when_done(copy)
    assert table(carry_out(small_check(recipe), copy, quiet=True)) == table(found)
    assert {path: when for path, when in when_done(copy).items() if path in before} == before
    for key in redone:
        old, new = (json.loads((top / key / "result.json").read_text()) for top in (out, copy))
        assert without_times(old) == without_times(new)
        assert set(TIMES) & set(old) == set(TIMES) & set(new)
    old, new = (read_tensors(top / redone[1] / "model.safetensors")[0] for top in (out, copy))
    assert all((old[name] == new[name]).all() for name in {**old, **new})


@pytest.mark.parametrize("kind", ["trial", "repeat"])
def test_a_unit_killed_before_it_removed_its_state_removes_it_and_trains_nothing(
    undisturbed, copy, recipe, kind, fails
):
    left = [*copy.glob(f"ms/{kind}-*/fold-0")]
    for folder in left:
        (folder / "state").mkdir()
        (folder / "state" / "000000001.safetensors").write_bytes(b"")
        (folder / "model.safetensors").touch() if kind == "trial" else None
    assert current_summary(copy) == undisturbed[1]
    fails(AssertionError("trained"))
    assert table(carry_out(small_check(recipe), copy, quiet=True)) == table(undisturbed[1])
    assert not list(copy.rglob("state"))
    assert all((folder / "model.safetensors").exists() == (kind == "repeat") for folder in left)


def test_a_summary_shows_what_lies_there(undisturbed, copy):
    shutil.rmtree(copy / "ms" / "repeat-01")
    assert current_summary(copy) == undisturbed[1]  # which has more than is there now
    (copy / "summary.json").unlink()
    part = current_summary(copy)
    assert not part["is_complete"]
    assert part["num_done"] == 15
    score = part["rows"][1]["scores"]["concatenated.map_at_r"]
    assert (len(score["values"]), score["low"]) == (1, None)
    assert table(part)[0] == table(undisturbed[1])[0]


def test_stopping_saves_the_state_of_the_unit_and_says_how_to_go_on(stripes, tmp_path, interrupted):
    out = tmp_path / "bench"
    begun = Run(out / "mf_cwms" / "seed-0")
    recipe = tiny_recipe(stripes, **QUICK | {"train__epochs": 5000})
    with interrupted(lambda: begun.exists() and begun.metrics()):
        carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    assert not summary_of(out)["is_complete"]
    assert (begun.folder / "state").exists()
    assert not list(out.rglob("*.lock"))


@pytest.fixture
def fails(monkeypatch):
    """Let the training of units raise an error, if its folder has these words in its name."""
    real = units.train

    def replace(*errors, words="", times=99):
        left = [*errors] * times

        def train(recipe, out, **options):
            if words in str(out) and left:
                raise left.pop()
            return real(recipe, out, **options)

        monkeypatch.setattr(units, "train", train)

    return replace


def test_a_seed_that_fails_does_not_stop_the_others_and_is_tried_again(recipe, tmp_path, fails):
    fails(RuntimeError("no luck today"), words="seed-1", times=1)
    plan = traditional(recipe, ["mf_cwms"], seeds=3)
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    row = found["rows"][1]
    assert row["failed"] == {"mf_cwms/seed-1": "RuntimeError: no luck today"}
    assert row["repetitions"] == [0, 2]
    assert not found["is_complete"]
    found = carry_out(plan, tmp_path / "bench", quiet=True)
    assert found["is_complete"]
    assert found["rows"][1]["repetitions"] == [0, 1, 2]


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("CUDA error: lost")])
def test_an_error_that_is_not_the_units_fault_is_no_failure_of_it(recipe, tmp_path, fails, error):
    fails(error)
    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    with pytest.raises(type(error), match=str(error)):
        carry_out(plan, tmp_path / "bench", quiet=True)
    assert current_summary(tmp_path / "bench")["rows"][1]["failed"] == {}
    fails()
    assert carry_out(plan, tmp_path / "bench", quiet=True)["is_complete"]


def test_a_trial_whose_loss_is_not_finite_scores_zero_and_the_search_goes_on(
    recipe, tmp_path, fails
):
    fails(NotFiniteError("the loss must stay finite; it was nan"), words="trial-001")
    found = carry_out(small_check(recipe, trials=3, repeats=1), tmp_path / "bench", quiet=True)
    trials = found["rows"][1]["trials"]
    assert [trial["value"] == 0 for trial in trials] == [False, True, False]
    assert "it was nan" in trials[1]["failed"]
    assert found["is_complete"]


def test_what_fails_twice_in_a_row_or_is_refused_is_a_failed_trial(recipe, tmp_path, fails):
    def refused():
        raise ValueError("beta must be positive")

    # A lost device is not the fault of the settings, nor is a passing fault of the machine.
    unit = units.trial("ms/trial-000/fold-0", lambda: recipe)
    fails(RuntimeError("CUDA error: unspecified launch failure"), times=1)
    with pytest.raises(RuntimeError, match="CUDA error"):
        unit.work(tmp_path / "lost")
    assert unit.found(tmp_path / "lost") is None
    fails(RuntimeError("DataLoader worker (pid 1) is killed by signal"), times=1)
    assert unit.work(tmp_path / "passing")["map_at_r"] > 0
    fails(RuntimeError("these settings do not work"), ZeroDivisionError("nor in another way"))
    for name, make, why in (
        ("one", lambda: recipe, "these settings"),
        ("two", refused, "must be positive"),
    ):
        unit = units.trial("k", make)
        assert why in unit.work(tmp_path / name)["failed"]
        assert why in unit.found(tmp_path / name)["failed"]


def test_a_comparison_may_grow_but_not_change(recipe, tmp_path):
    out = tmp_path / "bench"
    small = traditional(recipe, ["mf_cwms"], seeds=1)
    carry_out(small, out, quiet=True, command="first")
    before = when_done(out)
    found = carry_out(traditional(recipe, ["ms"], seeds=2), out, quiet=True, command="second")
    assert [row["name"] for row in found["rows"]] == ["untrained", "mf_cwms", "ms"]
    assert all(row["repetitions"] == [0, 1] for row in found["rows"])
    assert {path: when for path, when in when_done(out).items() if path in before} == before
    assert found["command"] == "first\nsecond"
    # A command that asks for less does not take rows away.
    assert carry_out(small, out, quiet=True)["rows"] == found["rows"]
    other = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"lr": 0.5})})
    with pytest.raises(ValueError, match=r"other settings.*\n  optim.lr: 0.01 -> 0.5\n.*the same"):
        carry_out(traditional(other, ["mf_cwms"], seeds=2), out, quiet=True)
    with pytest.raises(ValueError, match="it holds 'traditional'. Choose another folder"):
        carry_out(small_check(recipe), out, quiet=True)
    elsewhere = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"device": "auto"})}
    )
    assert carry_out(traditional(elsewhere, ["mf_cwms"], seeds=2), out, quiet=True)["is_complete"]


def test_a_command_does_also_what_another_one_adds_while_it_works(recipe, tmp_path, monkeypatch):
    out, real = tmp_path / "bench", units.train
    larger = traditional(recipe, ["mf_cwms"], seeds=2)

    def train(*given, **options):
        join(larger, out, "second")
        return real(*given, **options)

    monkeypatch.setattr(units, "train", train)
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True, command="first")
    assert found["is_complete"]
    assert found["rows"][1]["repetitions"] == [0, 1]


def test_another_number_of_trials_or_another_space_is_another_comparison(copy, recipe, tmp_path):
    with pytest.raises(ValueError, match="trials: 2 -> 3"):
        carry_out(small_check(recipe, trials=3), copy, quiet=True)
    spaces = tmp_path / "spaces.toml"
    spaces.write_text("[ms]\nalpha = { low = 1.0, high = 2.0 }\n")
    with pytest.raises(ValueError, match=r"spaces\.ms: .*0\.01.* -> .*2\.0"):
        carry_out(small_check(recipe, spaces=spaces), copy, quiet=True)
    grown = join(reality_check(recipe, ["triplet"], trials=2, repeats=1, folds=2), copy).options
    assert set(grown["spaces"]) == {"ms", "triplet"}
    assert grown["repeats"] == 2


def test_a_run_folder_a_broken_plan_and_torchrun_are_refused(recipe, tmp_path, monkeypatch):
    plan = traditional(recipe, ["mf_cwms"], seeds=1)
    measure_untrained(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="is a run itself"):
        join(plan, tmp_path / "run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "plan.json").write_text('{"id": ')
    with pytest.raises(ValueError, match="must be the plan of a comparison"):
        join(plan, tmp_path / "broken")
    with pytest.raises(ValueError, match="holds no plan.json"):
        current_summary(tmp_path)
    with pytest.raises(ValueError, match="--workers must be"):
        carry_out(plan, tmp_path / "new", workers=0)
    with pytest.raises(ValueError, match="--needs must come with --cluster"):
        carry_out(plan, tmp_path / "new", needs={"gpus": 1})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one process; .* without torchrun"):
        carry_out(plan, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_damaged_results_are_named_and_block_no_comparison(recipe, tmp_path, monkeypatch):
    out = tmp_path / "bench"
    plan = small_check(recipe, trials=1, repeats=1)
    found = carry_out(plan, out, quiet=True)
    loss = out / "ms"
    harmed = [loss / "repeat-00" / name for name in ("fold-0", "ensemble")]
    harmed = [path / "result.json" for path in (*harmed, loss / "trial-000" / "fold-1")]
    harmed = [*(out / "untrained").rglob("result.json"), *harmed]
    for path in harmed:
        path.write_text(path.read_text()[:-20])
    with pytest.warns(UserWarning, match="result.json must be JSON; it is cut off"):
        before = current_summary(out)
    assert table(before) == table(found)  # the last complete summary
    trained, real = [], units.train

    def train(recipe, folder, **options):
        trained.append(folder)
        return real(recipe, folder, **options)

    monkeypatch.setattr(units, "train", train)
    with pytest.warns(UserWarning, match="result.json must be JSON") as caught:
        again = carry_out(plan, out, quiet=True)
    said = " ".join(str(each.message) for each in caught)
    assert all(f"{path} must be JSON; it is cut off" in said for path in harmed)
    assert table(again) == table(found)
    # Units that train; of the first the model and the metrics are there, so it takes no steps.
    assert sorted(trained) == [loss / "repeat-00" / "fold-0", loss / "trial-000" / "fold-1"]


@pytest.mark.parametrize("text", ["[]", "{", '{"num_done": "6"}'])
def test_a_damaged_summary_is_put_together_again(recipe, tmp_path, text):
    out = tmp_path / "bench"
    found = carry_out(traditional(recipe, ["mf_cwms"], seeds=1), out, quiet=True)
    (out / "summary.json").write_text(text)
    (out / "untrained" / "seed-0" / "recipe.toml").write_text("[")  # what it was made with
    with pytest.warns(UserWarning, match="summary.json must .* put together again from the folder"):
        assert current_summary(out) == found


@pytest.mark.parametrize(
    "harm", [[], {"options": []}, {"options": {"losses": 5}}, {"recipe": "x"}, {"kind": 1}]
)
def test_a_plan_with_other_kinds_of_values_is_refused(recipe, tmp_path, harm):
    join(traditional(recipe, ["mf_cwms"], seeds=1), tmp_path)
    held = read_plan(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({**held, **harm} if harm else harm))
    with pytest.raises((ValueError, TypeError), match=r"plan.json|losses"):
        current_summary(tmp_path)


def test_an_ensemble_reads_the_data_where_this_machine_keeps_them(stripes, tmp_path, decoded):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(stripes, here)
    paths = sorted(path.relative_to(here) for path in here.rglob("*.png"))
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{p},{p.parent}\n" for p in paths))

    def plan(root):
        return small_check(tiny_recipe(listed, data__root=root, **QUICK), trials=1, repeats=1)

    out = tmp_path / "bench"
    found = carry_out(plan(here), out, quiet=True)
    assert decoded == [NUM_IMAGES]  # once for all runs and the ensemble
    shutil.rmtree(out / "ms" / "repeat-00" / "ensemble")
    for kept in out.glob("*/repeat-00/fold-1/test_embeddings.safetensors"):
        kept.unlink()  # as if an older version had made it
    here.rename(there)
    assert table(carry_out(plan(there), out, quiet=True)) == table(found)
    assert len(decoded) == 2  # decoded images do not outlast a command


def carried(out, to):
    """Copy a comparison as one copies it to another machine: without networks and states."""
    return Path(shutil.copytree(out, to, ignore=shutil.ignore_patterns("model.*", "state", ".*")))


@pytest.fixture
def unmeasured(copy, tmp_path):
    """A copy of the comparison without networks, of which the ensembles are not measured yet."""
    for ensemble in copy.glob("*/*/ensemble"):
        shutil.rmtree(ensemble)
    return carried(copy, tmp_path / "carried")


def test_ensembles_need_neither_networks_nor_data(undisturbed, unmeasured, recipe, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a network embeds")

    monkeypatch.setattr(units, "embed_runs", refuse)
    monkeypatch.setattr(units, "train", refuse)
    monkeypatch.setattr(units, "measure_untrained", refuse)
    assert not list(unmeasured.rglob("model.safetensors"))
    assert table(carry_out(small_check(recipe), unmeasured, quiet=True)) == table(undisturbed[1])


def test_an_ensemble_without_embeddings_and_networks_is_refused_by_name(unmeasured, recipe):
    lost = unmeasured / "ms" / "repeat-01" / "fold-0"
    (lost / "test_embeddings.safetensors").unlink()
    found = carry_out(small_check(recipe), unmeasured, quiet=True)
    (why,) = found["rows"][1]["failed"].values()
    assert f"{lost} must hold test_embeddings.safetensors, or else model.safetensors" in why
    shutil.rmtree(lost)  # as it says
    assert carry_out(small_check(recipe), unmeasured, quiet=True)["is_complete"]


def test_damaged_embeddings_are_named_and_embedded_again(undisturbed, copy, recipe):
    kept = copy / "ms" / "repeat-00" / "fold-1" / "test_embeddings.safetensors"
    kept.write_bytes(kept.read_bytes()[:-8])
    shutil.rmtree(kept.parent.parent / "ensemble")
    with pytest.warns(UserWarning, match="test_embeddings.safetensors is damaged.*embeds again"):
        found = carry_out(small_check(recipe), copy, quiet=True)
    assert table(found) == table(undisturbed[1])


def test_folds_that_embedded_other_items_are_refused(unmeasured, recipe):
    folder = unmeasured / "ms" / "repeat-00" / "fold-1"
    kept = Run(folder).test_embeddings()
    Run(folder).write_test_embeddings(kept | {"labels": kept["labels"] + 1})
    found = carry_out(small_check(recipe), unmeasured, quiet=True)
    (why,) = found["rows"][1]["failed"].values()
    assert f"must embed the same test items; {folder} has others" in why


def test_a_comparison_that_is_stopped_and_carried_continues_on_another_machine(
    stripes, tmp_path, interrupted
):
    paths = sorted(path.relative_to(stripes) for path in stripes.rglob("*.png"))
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{p},{p.parent}\n" for p in paths))

    def plan(root):
        return small_check(tiny_recipe(listed, data__root=root, **QUICK), repeats=1)

    whole = carry_out(plan(stripes), tmp_path / "whole", quiet=True)
    root, out = stripes, tmp_path / "machine-0" / "bench"
    for number, unit in enumerate(("ms/trial-001/fold-0", "ms/repeat-00/fold-1"), 1):
        with interrupted(lambda out=out, unit=unit: (out / unit / "recipe.toml").exists()):
            carry_out(plan(root), out, quiet=True)
        machine = tmp_path / f"machine-{number}"
        before, root = out, Path(shutil.copytree(root, machine / "data"))
        out = carried(before, machine / "bench")
        done = when_done(out)
        assert 0 < len(done) < 14
        shutil.rmtree(before.parent)
    assert table(carry_out(plan(root), out, quiet=True)) == table(whole)
    assert {path: when for path, when in when_done(out).items() if path in done} == done


def test_of_several_that_begin_at_once_all_take_the_first_plan(recipe, tmp_path, at_once):
    plans = [traditional(recipe, [loss], seeds=1) for loss in ("ms", "mf_cwms", "triplet")]
    at_once(lambda plan: join(plan, tmp_path / "bench"), plans)
    held = read_plan(tmp_path / "bench")
    assert set(held["options"]["losses"]) == {"ms", "mf_cwms", "triplet"}
    assert not list((tmp_path / "bench").glob(".*"))
    again = join(plans[0], tmp_path / "bench")
    assert again.options == held["options"]
    assert read_plan(tmp_path / "bench") == held
