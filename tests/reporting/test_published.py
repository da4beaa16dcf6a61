"""The paper's numbers: found where it prints them, absent where it does not."""

import json
from importlib import resources

import pytest

from weiss.losses import LOSSES
from weiss.reporting.published import Published, difference_in_words, published, source

FILE = json.loads(resources.files("weiss.reporting").joinpath("published.json").read_text())


def number(kind, data, loss, metric="map_at_r", at=None, **more):
    return published({"kind": kind, "data": data}, {"loss": loss, **more}, metric, at=at)


def test_every_number_of_the_traditional_protocol_is_found_for_a_loss_of_ours():
    assert set(FILE["short_names"].values()) <= set(LOSSES)
    for data, losses in FILE["traditional"].items():
        for name, metrics in losses.items():
            for metric, given in metrics.items():
                found = number("traditional", data, FILE["short_names"][name], metric)
                assert found == Published(given["mean"], given["ci95"])
    for losses in FILE["mlrc"].values():
        assert set(losses) <= set(FILE["short_names"])


@pytest.mark.parametrize(
    ("mean", "half_width", "asked"),
    [
        (21.46, 0.13, ("reality-check", "cub", "arcface", "separated.map_at_r")),
        (51.17, 0.18, ("reality-check", "sop", "mf_cwms", "concatenated.r_precision")),
        (53.0, 0.3, ("batch-size", "sop", "mf_cwms", "map_at_r", 300)),
        (67.4, 0.2, ("batch-size", "inshop", "mf_cwms", "map_at_r", 30)),
        (25.1, 0.3, ("regularisation", "cub", "mf_cwms", "map_at_r", 100)),
        (25.1, 0.3, ("regularisation", "cub", "mf_cwms", "map_at_r", 100.0)),
        (25.2, 0.3, ("regularisation", "cub", "mf_contrastive", "map_at_r", 0.01)),
    ],
)
def test_other_numbers_are_found_by_their_part_or_value_however_it_is_written(
    mean, half_width, asked
):
    assert number(*asked) == Published(mean, half_width)


@pytest.mark.parametrize(
    "asked",
    [
        ("traditional", "glyphs", "mf_cwms"),
        ("traditional", "cub", "triplet"),
        ("traditional", "cub", "untrained"),
        ("traditional", "cub", "mf_cwms", "precision_at_1"),
        ("reality-check", "sop", "proxy_anchor", "separated.map_at_r"),
        ("reality-check", "inshop", "mf_cwms", "separated.map_at_r"),
        ("reality-check", "cub", "mf_cwms"),
        ("fields", "cub", "mf_cwms"),
        ("dimension", "cub", "mf_cwms", "map_at_r", 64),
        ("batch-size", "cub", "mf_cwms", "map_at_r", 64),
        ("batch-size", "sop", "mf_cwms", "precision_at_1", 300),
        ("regularisation", "cars", "mf_cwms", "map_at_r", 0),
    ],
)
def test_what_the_paper_does_not_have_is_absent(asked):
    assert number(*asked) is None


def test_a_loss_with_other_settings_has_no_number():
    assert number("traditional", "cub", "mf_cwms", changes={}) == Published(25.3, 0.3)
    assert number("traditional", "cub", "mf_cwms", changes={"loss.delta": 1}) is None


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
