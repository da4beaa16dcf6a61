"""Search spaces as data, and suggestions that are functions of what is known."""

import math

import pytest

from weiss.comparing.search_spaces import SAMPLERS, Range, Tried, search_space, suggest
from weiss.losses import LOSSES, make_loss

SPACE = {"beta": Range(10.0, 200.0), "class_lr": Range(1e-6, 1.0, log=True)}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_has_a_space_whose_ends_it_accepts(loss):
    space = search_space(loss)
    assert ("class_lr" in space) == (LOSSES[loss].class_lr_scale is not None)
    for end in ("low", "high"):
        values = {name: getattr(each, end) for name, each in space.items() if name != "class_lr"}
        make_loss(loss, 4, 8, **values)


def test_the_benchmarks_ranges_are_those_of_its_authors():
    assert search_space("arcface")["margin"] == Range(0.0, 90.0)
    assert search_space("arcface")["scale"] == Range(0.01, 200.0)
    assert search_space("ms")["alpha"] == search_space("ms")["beta"] == Range(0.01, 100.0)
    assert search_space("proxy_nca")["softmax_scale"] == Range(0.01, 100.0)
    assert search_space("contrastive_pml")["neg_margin"] == Range(-0.2, 2.0)
    assert search_space("mf_cwms")["class_lr"] == Range(1e-6, 1.0, log=True)


def score(settings):
    """A hill whose top is at beta 90 and class_lr 1e-3."""
    return -(((settings["beta"] - 90) / 100) ** 2) - (math.log10(settings["class_lr"]) + 3) ** 2 / 9


def searched(sampler, trials, seed=0):
    before = []
    for _ in range(trials):
        settings = suggest(SPACE, before, seed=seed, trials=trials, sampler=sampler)
        before.append(Tried(settings, score(settings)))
    return before


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_is_the_same_whenever_and_by_whomever_it_is_asked(sampler):
    once = searched(sampler, 6)
    # Any trial alone, from what was known before it: as after a restart.
    for number in (0, 2, 5):
        again = suggest(SPACE, once[:number], seed=0, trials=6, sampler=sampler)
        assert again == once[number].settings
    assert once != searched(sampler, 6, seed=1)


def test_the_model_finds_the_top_better_than_chance():
    found = searched("gp", 16)
    by_chance = max(each.value for each in found[:8])  # those are drawn at random
    assert max(each.value for each in found) > by_chance
    assert max(each.value for each in found) > -0.05


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_suggestions_stay_in_their_ranges_also_while_others_are_under_way(sampler):
    before = [*searched(sampler, 6)[:5], Tried({"beta": 50.0, "class_lr": 0.1}, None)]
    settings = suggest(SPACE, before, seed=0, trials=9, sampler=sampler)
    assert set(settings) == set(SPACE)
    for name, each in SPACE.items():
        assert each.low <= settings[name] <= each.high


def test_zeros_of_failed_trials_do_not_hurt_the_model():
    before = [Tried({"beta": 10.0 + n, "class_lr": 1e-3}, 0.0) for n in range(6)]
    assert suggest(SPACE, before, seed=0, trials=8)


def test_a_file_can_give_other_spaces(tmp_path):
    file = tmp_path / "spaces.toml"
    file.write_text("[ms]\nalpha = { low = 1, high = 2 }\n")
    assert search_space("ms", file) == {"alpha": Range(1.0, 2.0)}
    assert search_space("triplet", file) == search_space("triplet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mss]\nalpha = { low = 1, high = 2 }", "'mss' is not. Did you mean 'ms'"),
        ("[ms]\nalpa = { low = 1, high = 2 }", "alpa in .* must be one of .* Did you mean 'alpha'"),
        ("[ms]\nalpha = 3", "alpha in .* must be { low = NUMBER, high = NUMBER }"),
        ("[ms]\nalpha = { low = 3, high = 3 }", "from a low to a higher number"),
        ("[ms]\nalpha = { low = 'a', high = 3 }", "from a low to a higher number"),
        ("[ms]\nalpha = { low = 0, high = 3, log = true }", "low above 0"),
        ("[ms]\nclass_lr = { low = 0.1, high = 3 }", "class_lr in .* must be one of"),
        ("[ms]\n", "must name a parameter"),
        ("[ms", "must be TOML"),
    ],
)
def test_what_is_no_search_space_is_refused(tmp_path, text, message):
    file = tmp_path / "spaces.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        search_space("ms", file)


def test_an_absent_file_an_unknown_loss_and_an_unknown_sampler_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be readable"):
        search_space("ms", tmp_path / "nothing.toml")
    with pytest.raises(ValueError, match="Did you mean 'mf_cwms'"):
        search_space("mf_cwm")
    with pytest.raises(ValueError, match="sampler must be"):
        suggest(SPACE, [], seed=0, trials=3, sampler="random")
