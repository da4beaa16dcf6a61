"""Epoch 0: the network before training, and what training brought."""

import warnings

import pytest
import torch
from tiny import tiny_recipe, traces
from torch.nn import functional

from weiss import retrieval_metrics
from weiss.runs import Run, recipe_with, without_head
from weiss.training import measure_untrained, train
from weiss.training.preparation import prepare


@pytest.fixture(scope="module")
def both(stripes, tmp_path_factory):
    """The same run with and without its epoch 0; only to be read."""
    folder = tmp_path_factory.mktemp("both")
    for name, baseline in (("with", True), ("without", False)):
        recipe = tiny_recipe(stripes)
        train(recipe, folder / name, quiet=True, pictures=False, baseline=baseline)
    return folder


def test_measuring_the_start_changes_nothing_in_training(both):
    one, other = traces(both / "with"), traces(both / "without")
    more = {"before", "start", "gain"}
    lines = [{k: v for k, v in line.items() if k not in more} for line in one["metrics"]]
    assert lines == other["metrics"]
    assert one["model"] == other["model"]
    assert {k: v for k, v in one["result"].items() if k not in more} == other["result"]


def test_epoch_0_is_the_averaged_features_before_training_without_a_head(both, stripes, tmp_path):
    from weiss._base.processes import Processes

    recipe = tiny_recipe(stripes)
    made = prepare(recipe, torch.device("cpu"), Processes())
    rows = made.experiment.table.rows("test")
    shown = made.experiment.evaluator
    with torch.no_grad():
        model = made.model.eval()
        images = [b.images for b in shown.pipeline.evaluation(shown.crop, rows=rows, batch_size=9)]
        maps = [model.trunk(model.conversion(each)) for each in images]
        raw = torch.cat([each.flatten(2).mean(2) for each in maps])
    labels = torch.from_numpy(made.experiment.table.labels[rows])
    found = retrieval_metrics(functional.normalize(raw), labels)
    before = Run(both / "with").result()["before"]
    assert before["map_at_r"] == pytest.approx(found["map_at_r"])
    # The same as a run of no epochs without a head.
    alone = measure_untrained(without_head(recipe), tmp_path / "alone")
    assert alone["map_at_r"] == pytest.approx(before["map_at_r"])


def test_the_run_ends_with_what_training_brought_and_shows_the_loss_above_its_least(
    stripes, tmp_path, capsys
):
    recipe = tiny_recipe(stripes, data__held_out=0.6, train__epochs=2)
    train(recipe, tmp_path / "run", pictures=False)
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line]
    result = Run(tmp_path / "run").result()
    brought = next(line for line in lines[-2:] if line.startswith("untrained "))
    assert brought.startswith(f"untrained {100 * result['before']['map_at_r']:.1f} -> trained ")
    assert "on 6 classes it never saw (" in brought
    assert brought in (tmp_path / "run" / "card.md").read_text()
    assert (lines[-1] == brought) == (result["gain"]["mean"] >= 0)
    assert (result["gain"]["classes"], result["gain"]["unseen"]) == (6, 6)
    difference = result["map_at_r"] - result["before"]["map_at_r"]
    assert result["gain"]["mean"] == pytest.approx(difference)
    assert "epoch 0/2  untrained, without a head  MAP@R" in out
    least = Run(tmp_path / "run").loss().least_value
    assert f"losses are shown above their least value, {least:.4f}" in out
    whole = Run(tmp_path / "run").metrics()[0]["loss"]
    assert whole > least > 60  # the file has it whole
    assert f"loss {whole - least:8.4f}" in out


def test_a_resumed_run_keeps_its_start_and_one_of_an_older_version_has_none(run):
    folder = run(train__epochs=1)
    first = Run(folder).result()
    assert Run(run(train__epochs=2, resume=True)).result()["before"] == first["before"]
    # A state of an older version has no such entry.
    state = Run(folder).checkpoints.newest()
    del state.facts["position"]["before"]
    for line in state.facts["position"]["history"]:
        line.pop("before", None)
        line.pop("gain", None)
    Run(folder).checkpoints.save(state.facts["position"]["steps"], state)
    with pytest.warns(UserWarning, match="written again from the state"):
        assert "before" not in Run(run(train__epochs=3, resume=True)).result()


def test_features_without_a_direction_train_all_the_same(stripes, tmp_path, monkeypatch):
    from weiss.backbones import embedder

    class Nothing(embedder.WithoutHead):
        def forward(self, images):
            return 0 * super().forward(images)

    monkeypatch.setattr("weiss.training.trainer.WithoutHead", Nothing)
    with pytest.warns(UserWarning, match="before training has no score: .*zero vector"):
        train(tiny_recipe(stripes, train__epochs=1), tmp_path / "run", quiet=True, pictures=False)
    assert "before" not in Run(tmp_path / "run").result()


def test_the_network_without_its_head_leaves_frozen_normalisation_frozen(stripes, tmp_path):
    changes = {"backbone.freeze_bn": "statistics", "train.epochs": 1}
    recipe = recipe_with(tiny_recipe(stripes), changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, baseline in (("one", True), ("other", False)):
            train(recipe, tmp_path / name, quiet=True, pictures=False, baseline=baseline)
    assert traces(tmp_path / "one")["model"] == traces(tmp_path / "other")["model"]


def test_a_report_compares_with_the_start_and_says_what_is_not_trained(both, stripes, tmp_path):
    from weiss.reporting.reading import read_folders
    from weiss.reporting.report import lead_of
    from weiss.reporting.tables import comparison_tables

    (trained,) = read_folders([both / "with"])
    result = Run(both / "with").result()
    start = f"Training brought: untrained {100 * result['before']['map_at_r']:.1f} -> trained "
    assert start in lead_of(trained)
    measured = measure_untrained(without_head(tiny_recipe(stripes)), tmp_path / "alone")
    (alone,) = read_folders([tmp_path / "alone"])
    words = "small network with random weights, not trained"
    assert lead_of(alone) == f"{words}: MAP@R {100 * measured['map_at_r']:.1f} %."
    (table,) = comparison_tables(alone)
    assert table.rows[0][0] == words
    assert not table.best
    assert table.rows[0][table.headers.index("best epoch")] is None
