"""The paper's numbers: found where it prints them, absent where it does not."""

import json
from importlib import resources

import pytest

from weiss.losses import LOSSES
from weiss.reporting.published import (
    Published,
    difference_in_words,
    published,
    published_at,
    published_for_picture,
    source,
)

FILE = json.loads(resources.files("weiss.reporting").joinpath("published.json").read_text())


def test_every_loss_of_the_paper_is_one_of_ours():
    assert set(FILE["short_names"].values()) <= set(LOSSES)
    for table in ("traditional", "mlrc"):
        for losses in FILE[table].values():
            assert set(losses) <= set(FILE["short_names"])


def test_every_number_of_the_protocols_is_found():
    for data, losses in FILE["traditional"].items():
        for name, metrics in losses.items():
            for metric, number in metrics.items():
                found = published("traditional", data, FILE["short_names"][name], metric)
                assert found == Published(number["mean"], number["ci95"])
    number = published("reality-check", "cub", "arcface", "separated.map_at_r")
    assert number == Published(21.46, 0.13)
    number = published("reality-check", "sop", "mf_cwms", "concatenated.r_precision")
    assert number == Published(51.17, 0.18)


def test_every_number_of_the_studies_is_found_by_its_value_however_it_is_written():
    assert published_at("batch-size", "sop", "mf_cwms", 300) == Published(53.0, 0.3)
    assert published_at("batch-size", "inshop", "mf_cwms", 30) == Published(67.4, 0.2)
    for value in (100, 100.0):
        assert published_at("regularisation", "cub", "mf_cwms", value) == Published(25.1, 0.3)
    assert published_at("regularisation", "cub", "mf_contrastive", 0.01) == Published(25.2, 0.3)


@pytest.mark.parametrize(
    ("kind", "data", "loss", "metric"),
    [
        ("traditional", "glyphs", "mf_cwms", "map_at_r"),
        ("traditional", "cub", "triplet", "map_at_r"),
        ("traditional", "cub", "untrained", "map_at_r"),
        ("traditional", "cub", "mf_cwms", "precision_at_1"),
        ("reality-check", "sop", "proxy_anchor", "separated.map_at_r"),
        ("reality-check", "inshop", "mf_cwms", "separated.map_at_r"),
        ("reality-check", "cub", "mf_cwms", "map_at_r"),
        ("fields", "cub", "mf_cwms", "map_at_r"),
    ],
)
def test_what_the_paper_does_not_have_is_absent(kind, data, loss, metric):
    assert published(kind, data, loss, metric) is None


def test_studies_that_the_paper_draws_but_does_not_print_are_absent():
    assert published_at("dimension", "cub", "mf_cwms", 64) is None
    assert published_at("batch-size", "cub", "mf_cwms", 64) is None
    assert published_at("regularisation", "cars", "mf_cwms", 0) is None


def row(loss, **at):
    return {"name": loss, "loss": loss, "title": LOSSES[loss].title, "at": at}


def test_pictures_get_the_numbers_by_title_in_the_shape_of_their_kind():
    changed = {"title": "changed", "changes": {"loss.delta": 1}}  # the paper has other settings
    rows = [row("mf_cwms"), row("triplet"), row("mf_cwms") | changed]
    summary = {"kind": "traditional", "data": "cub", "rows": rows}
    assert published_for_picture(summary) == {"MFCWMS": Published(25.3, 0.3)}
    parts = published_for_picture({**summary, "kind": "reality-check"})["MFCWMS"]
    assert parts["separated"].mean == 22.11
    assert parts["concatenated"].mean == 27.03
    rows = [row("mf_cwms", **{"train.batch_size": size}) for size in (30, 64)]
    study = published_for_picture({"kind": "batch-size", "data": "cub", "rows": rows})
    assert study == {"MFCWMS": {30: Published(23.3, 0.3)}}
    assert published_for_picture({**summary, "data": "glyphs"}) == {}


def test_another_network_is_said_to_be_another():
    ours = {"kind": "traditional", "backbone": "resnet50", "embedding_size": 512}
    assert "not the same network" in difference_in_words(ours)
    assert "resnet50" in difference_in_words(ours)
    same = {**ours, "backbone": "bn_inception"}
    assert difference_in_words(same) == ""
    assert "512 dimensions, the one here 64" in difference_in_words({**same, "embedding_size": 64})
    held_out = {**same, "selected_on": "held-out training classes"}
    assert difference_in_words(held_out) == " In the paper the test set chose the epoch."
    # There held-out classes always choose, in the paper too.
    assert "chose" not in difference_in_words({**held_out, "kind": "reality-check"})


def test_the_source_names_author_title_and_network():
    for word in ("Furusawa", "Mean Field Theory in Deep Metric Learning", "BN-Inception"):
        assert word in source()
