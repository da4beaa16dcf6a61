"""The paper's numbers: found where it prints them, absent where it does not."""

import json
from collections import Counter
from importlib import resources

import pytest

from weiss.data.official_sets import OFFICIAL
from weiss.losses import LOSSES
from weiss.reporting.published import difference_in_words, published, source

FILE = json.loads(resources.files("weiss.reporting").joinpath("published.json").read_text())


def number(kind, data, loss, metric="map_at_r", at=None, row=(), **summary):
    """The mean of a published number and half the width of its interval; None if it is absent."""
    found = published(
        {"kind": kind, "data": data, **summary}, {"loss": loss, **dict(row)}, metric, at=at
    )
    return found and (found.mean, pytest.approx(found.high - found.mean))


def every_number():
    """What to ask for each number of the file, and its entry."""
    losses = FILE["short_names"]
    for table, kind in (("traditional", "traditional"), ("mlrc", "reality-check")):
        for data, of_data in FILE[table].items():
            for loss, metrics in of_data.items():
                for metric, given in metrics.items():
                    asked = metric.replace("_128", "").replace("_512", "")
                    yield (kind, data, losses[loss], asked), given
    for table, kind in (("batch_size", "batch-size"), ("regularisation", "regularisation")):
        for loss, of_loss in FILE[table].items():
            for data, values in of_loss.items():
                for at, given in values.items():
                    yield (kind, data, losses[loss], "map_at_r", float(at)), given


def test_every_number_is_found_for_data_and_a_loss_of_ours():
    for (kind, data, loss, *more), given in every_number():
        assert data in OFFICIAL
        assert loss in LOSSES
        assert number(kind, data, loss, *more) == (given["mean"], given["ci95"])


def test_the_file_has_every_number_of_the_papers_tables():
    """Rows times columns of tables 2 to 11; table 1 repeats the supplement's with fewer digits."""
    counted = Counter((kind, data) for (kind, data, *_), _ in every_number())
    assert counted == {
        **{("traditional", data): 3 * 2 for data in ("cub", "cars", "sop", "inshop")},
        ("reality-check", "cub"): 10 * 6,
        ("reality-check", "cars"): 10 * 6,
        ("reality-check", "sop"): 9 * 6,  # ProxyAnchor failed to converge
        **{("batch-size", data): 6 for data in ("cub", "cars", "sop")},
        **{("batch-size", data): 2 * 7 for data in ("inshop", "inshop_joined")},
        ("regularisation", "cub"): 2 * 6,
    }


@pytest.mark.parametrize(
    ("mean", "half_width", "asked"),
    [
        (25.3, 0.3, ("traditional", "cub", "mf_cwms")),
        (20.6, 2.1, ("traditional", "inshop", "mf_cwms", "epoch")),
        (21.46, 0.13, ("reality-check", "cub", "arcface", "separated.map_at_r")),
        (51.17, 0.18, ("reality-check", "sop", "mf_cwms", "concatenated.r_precision")),
        (53.0, 0.3, ("batch-size", "sop", "mf_cwms", "map_at_r", 300)),
        (67.4, 0.2, ("batch-size", "inshop", "mf_cwms", "map_at_r", 30)),
        (63.6, 1.4, ("batch-size", "inshop", "proxy_anchor", "map_at_r", 30)),
        (64.6, 0.1, ("batch-size", "inshop_joined", "mf_cwms", "map_at_r", 500)),
        (25.1, 0.3, ("regularisation", "cub", "mf_cwms", "map_at_r", 100)),
        (25.1, 0.3, ("regularisation", "cub", "mf_cwms", "map_at_r", 100.0)),
        (25.2, 0.3, ("regularisation", "cub", "mf_contrastive", "map_at_r", 0.01)),
    ],
)
def test_a_number_is_that_of_the_papers_table_however_its_value_is_written(mean, half_width, asked):
    assert number(*asked) == (mean, half_width)


@pytest.mark.parametrize(
    "asked",
    [
        ("traditional", "glyphs", "mf_cwms"),
        ("traditional", "cub", "triplet"),
        ("traditional", "cub", "untrained"),
        ("traditional", "cub", "mf_cwms", "precision_at_1"),
        ("traditional", "inshop_joined", "mf_cwms"),
        ("reality-check", "sop", "proxy_anchor", "separated.map_at_r"),
        ("reality-check", "inshop", "mf_cwms", "separated.map_at_r"),
        ("reality-check", "cub", "mf_cwms"),
        ("fields", "cub", "mf_cwms"),
        ("dimension", "cub", "mf_cwms", "map_at_r", 64),
        ("batch-size", "cub", "mf_cwms", "map_at_r", 64),
        ("batch-size", "cub", "mf_cwms", "map_at_r", "all"),
        ("batch-size", "sop", "mf_cwms", "precision_at_1", 300),
        ("regularisation", "cars", "mf_cwms", "map_at_r", 0),
    ],
)
def test_what_the_paper_does_not_have_is_absent(asked):
    assert number(*asked) is None


def test_other_settings_and_scores_that_are_not_of_the_test_set_have_no_number():
    asked = ("traditional", "cub", "mf_cwms")
    assert number(*asked, row={"changes": {}}, measured_on="test") == (25.3, 0.3)
    assert number(*asked, row={"changes": {"loss.delta": 1}}) is None
    assert number(*asked, measured_on="held-out training classes") is None


def test_another_network_is_said_to_be_another():
    ours = {"kind": "traditional", "backbone": "resnet50", "embedding_size": 512}
    assert "not the same network" in difference_in_words(ours)
    assert "resnet50" in difference_in_words(ours)
    same = {**ours, "backbone": "bn_inception"}
    assert difference_in_words(same) == ""
    assert "512 dimensions, the one here 64" in difference_in_words({**same, "embedding_size": 64})
    frozen = {**same, "recipe": {"backbone": {"train": "frozen"}}}
    assert "the whole network trains, here not (backbone.train = 'frozen')" in (
        difference_in_words(frozen)
    )
    held_out = {**same, "selected_on": "held-out training classes"}
    assert difference_in_words(held_out) == " In the paper the test set chose the epoch."
    # There held-out classes always choose, in the paper too.
    assert "chose" not in difference_in_words({**held_out, "kind": "reality-check"})


def test_a_regulariser_of_another_scale_than_in_the_papers_table_is_said_to_be_one():
    def words(kind, loss, **settings):
        rows = [{"loss": "untrained", "settings": {}}, {"loss": loss, "settings": settings}]
        same = {"backbone": "bn_inception", "embedding_size": 512, "rows": rows}
        return difference_in_words({"kind": kind, **same})

    assert "divided by beta squared" in words("regularisation", "mf_cwms", reg_scale="paper")
    assert "loss.reg_scale=released" in words("regularisation", "mf_cwms")  # of an old version
    assert words("regularisation", "mf_cwms", reg_scale="released") == ""
    assert words("regularisation", "mf_contrastive", reg_scale="paper") == ""  # it has no beta
    assert words("batch-size", "mf_cwms", reg_scale="paper") == ""


def test_the_source_names_author_title_and_network():
    for word in ("Takuya Furusawa", "Mean Field Theory in Deep Metric Learning", "BN-Inception"):
        assert word in source()
