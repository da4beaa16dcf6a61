"""Random numbers by place: uniform, independent, and the same wherever they are asked for."""

import numpy as np
import pytest
from scipy import stats

from weiss._base import draws

PINNED = [
    float.fromhex("0x1.422bee380db48p-2"),
    float.fromhex("0x1.2eabfe595b0fcp-3"),
    float.fromhex("0x1.a69984b5a9dacp-1"),
]


def test_a_number_depends_on_its_place_alone():
    whole = draws.uniform(3, 5, np.arange(100)[:, None], np.arange(7))
    assert whole.shape == (100, 7)
    some = draws.uniform(3, 5, np.arange(40, 60)[:, None], np.arange(7))
    np.testing.assert_array_equal(whole[40:60], some)
    assert draws.uniform(3, 5, 41, 2) == whole[41, 2]


@pytest.mark.parametrize("axis", ["seed", "epoch", "position", "draw"])
def test_numbers_are_uniform_and_neighbours_independent_along_every_axis(axis):
    n = np.arange(20_000)
    first, second = {
        "seed": lambda: (
            np.array([draws.uniform(int(s), 0, 0) for s in n[:1500]]),
            np.array([draws.uniform(int(s) + 1, 0, 0) for s in n[:1500]]),
        ),
        "epoch": lambda: (draws.uniform(0, n, 0, 0), draws.uniform(0, n + 1, 0, 0)),
        "position": lambda: (draws.uniform(0, 0, n, 0), draws.uniform(0, 0, n + 1, 0)),
        "draw": lambda: (draws.uniform(0, 0, 0, n), draws.uniform(0, 0, 0, n + 1)),
    }[axis]()
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(len(first))
    assert len(np.unique(first)) == len(first)


def test_places_do_not_alias():
    # (0, 1) and (1, 0), longer and shorter addresses, negative numbers: all of their own.
    places = [(0, 1), (1, 0), (0,), (0, 0), (0, 0, 0), (1, 1), (-1,), (-1, 0), (2**40,), (1,)]
    values = {float(draws.uniform(0, *place)) for place in places}
    assert len(values) == len(places)
    assert draws.uniform(-5, -1) == draws.uniform(-5, np.array(-1))


def test_numbers_stay_the_same_on_every_machine():
    got = draws.uniform(1, 2, np.arange(3))
    np.testing.assert_array_equal(got, PINNED)


def test_a_permutation_holds_everything_once_and_differs_by_place():
    first, second = draws.permutation(1000, 0, 1), draws.permutation(1000, 0, 2)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert (first == second).mean() < 0.02


def test_every_order_of_three_is_as_likely():
    orders = [tuple(draws.permutation(3, 7, k)) for k in range(3000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_no_two_uses_share_their_numbers():
    words = [value for name, value in vars(draws).items() if name.isupper() and len(name) > 4]
    assert len(words) == len(set(words)) >= 9


@pytest.mark.parametrize("seed", [0.9, None, True, "1"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(TypeError, match="seed must be a whole number"):
        draws.permutation(3, seed)
