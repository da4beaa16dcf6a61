"""Studies as plans: their rows, their values, and what they measure."""

import pytest

from weiss.comparing import STUDIES, carry_out, make_study, studies, units
from weiss.comparing.summary import plan_from
from weiss.comparing.units import results_on_disk
from weiss.runs import Run, recipe_from
from weiss.training import measure_untrained


def test_the_paper_s_ranges_are_covered():
    def values(name):
        return [list(axis["values"]) for axis in STUDIES[name].default_axes]

    assert values("dimension") == [[32, 64, 128, 256, 512, 1024]]
    assert values("batch-size")[0][0] == 30
    assert values("batch-size")[0][-1] == 500
    assert values("regularisation") == [[0.0, 0.01, 0.1, 1.0, 10.0, 100.0]]
    # The paper's delta is a cosine, 0.6 to 1; ours is a distance.
    assert [1 - delta for delta in values("beta-delta")[1]] == pytest.approx(
        [1, 0.9, 0.8, 0.7, 0.6]
    )


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_its_description(name, recipe):
    plan = make_study(name, recipe)
    again = plan_from(plan.describe())
    assert type(again) is type(plan)
    assert again.describe() == plan.describe()
    assert [unit.key for unit in again.ready({})] == [unit.key for unit in plan.ready({})]


def test_every_row_has_its_own_name_and_the_untrained_network_is_one(recipe):
    for name in ("dimension", "batch-size", "beta-delta", "regularisation", "fields"):
        plan = make_study(name, recipe)
        rows = plan.rows({}, {})
        assert len({row["name"] for row in rows}) == len(rows)
        untrained = [row for row in rows if row["loss"] == "untrained"]
        # It has no head: not even another embedding size changes it.
        assert len(untrained) == 1
        start = plan.variants[0].recipe.backbone
        assert (start.head, start.embedding_size, start.pooling) == ("none", None, None)


def test_values_reach_the_recipe(recipe):
    plan = make_study("beta-delta", recipe, values={"loss.beta": [7], "loss.delta": [0.25]})
    variant = plan.variants[1]
    assert {"beta": 7, "delta": 0.25}.items() <= variant.recipe.loss.arguments.items()
    assert variant.name == "mf_cwms/beta-7_delta-0.25"
    assert plan.num_units == 2


def test_a_pretrained_network_is_called_so():
    plan = make_study("fields", recipe_from("cub_resnet50"), seeds=3)
    assert plan.rows({}, {})[0]["title"] == "pretrained"
    # It is the same with every seed, and measured once.
    assert [unit.key for unit in plan.ready({}) if unit.key.startswith("untrained")] == [
        "untrained/seed-0"
    ]


def test_ways_to_find_the_fields_are_compared(recipe, tmp_path):
    plan = make_study("fields", recipe, losses=["mf_cwms"], seeds=2)
    found = carry_out(plan, tmp_path / "study", quiet=True)
    assert found["is_complete"]
    ways = [row["at"].get("fields.how") for row in found["rows"]]
    assert ways == [None, "joint", "alternating", "class_mean"]
    assert len(found["tests"]) == 3


def test_costs_grow_with_the_classes(recipe, tmp_path):
    plan = make_study(
        "classes", recipe, losses=["mf_cwms", "arcface"], values={"num_classes": [50, 500]}
    )
    found = carry_out(plan, tmp_path / "study", quiet=True)
    assert found["is_complete"]
    memory = {
        (row["loss"], row["at"]["num_classes"]): row["scores"]["megabytes"]["mean"]
        for row in found["rows"]
    }
    for loss in ("mf_cwms", "arcface"):
        assert memory[loss, 500] > 3 * memory[loss, 50]
    assert all(row["scores"]["milliseconds"]["mean"] > 0 for row in found["rows"])


def test_a_cost_names_the_machine_it_was_measured_on_whatever_its_device(
    recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(studies, "measure_cost", lambda *_, **__: {"device": "mps"})
    unit, *_ = make_study("classes", recipe).ready({})
    assert unit.work(tmp_path)["made_with"]["device"] == "CPU"


def test_a_cost_that_could_not_be_measured_is_a_failed_row_without_scores(recipe):
    values = {"num_classes": [50, 500, 5000]}
    plan = make_study("classes", recipe, losses=["mf_cwms"], values=values)
    keys = [unit.key for unit in plan.ready({})]
    done = {keys[0]: {"failed": "out of memory: 9 GB", "device": "CPU"}}
    found = plan.rows(done, {keys[1]: "RuntimeError: no luck"})
    assert [row["failed"] for row in found] == [
        {keys[0]: "out of memory: 9 GB"},
        {keys[1]: "RuntimeError: no luck"},
        {},
    ]
    assert [row["device"] for row in found] == ["CPU", None, None]
    assert not any(row["scores"] for row in found)
    assert found[0]["settings"]["beta"] == 80.0


def test_the_approximation_is_measured_on_drawn_classes_and_on_networks(recipe, tmp_path):
    plan = make_study("breakdown", recipe, losses=["mf_cwms"], values={"spread": [0.0, 0.2]})
    out = tmp_path / "study"
    found = carry_out(plan, out, quiet=True)
    assert found["is_complete"]
    assert found["num_done"] == found["num_units"] == 6
    rows = {row.get("network") or row["at"]["spread"]: row["scores"] for row in found["rows"]}
    assert set(rows) == {0.0, 0.2, "untrained", "trained"}
    assert rows[0.0]["excess"]["mean"] == pytest.approx(0.0, abs=1e-9)
    assert rows[0.2]["spread"]["mean"] == pytest.approx(0.2, abs=1e-3)
    assert 0 < rows["trained"]["spread"]["mean"] < 1
    assert len(results_on_disk(plan.ready, out)) == 6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dimensions", {}, "Did you mean 'dimension'"),
        ("dimension", {"losses": ["mf_cwm"]}, "Did you mean 'mf_cwms'"),
        ("dimension", {"seeds": 0}, "--seeds must be"),
        ("dimension", {"values": {"loss.beta": [1]}}, "--values must be"),
        ("classes", {"seeds": 3}, "must be left out"),
        ("dimension", {"values": {"backbone.embedding_size": []}}, "at least one value"),
        ("classes", {"values": {"num_classes": [50, 90, 50.0]}}, "none twice"),
        ("dimension", {"values": {"backbone.embedding_size": [-3]}}, "embedding_size must be"),
        ("classes", {"values": {"num_classes": [1]}}, "at least 2"),
        ("breakdown", {"losses": ["ms"]}, "--losses must be one of"),
        ("breakdown", {"values": {"spread": ["wide"]}}, "--values spread must be a number"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_begins(recipe, name, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_study(name, recipe, **options).check()


def test_an_untrained_result_behind_a_random_head_is_measured_again(recipe, tmp_path):
    """As versions before 0.2 measured it; a comparison that continues has it without a head."""
    folder = tmp_path / "untrained"
    measure_untrained(recipe, folder)
    unit = units.untrained("untrained", lambda: recipe)
    assert unit.found(folder) is None
    result = unit.work(folder)
    assert Run(folder).recipe()["backbone"]["head"] == "none"
    assert unit.found(folder) == unit.work(folder) == result
