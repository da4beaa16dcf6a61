"""Screening in low precision: its bound, and that no case makes it miss a neighbour.

The oracle follows the definition, one pair after the other, in float64.
"""

import math

import numpy as np
import pytest
import torch

from weiss.evaluation import evaluate_retrieval, neighbours, screening

LOW = (torch.float16, torch.bfloat16)
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-14}
"""What scores may differ by when two neighbours change places, of vectors of length about 1."""


@pytest.fixture(params=LOW, ids=str)
def always(request, monkeypatch):
    """Screen everything, whatever it costs, in this precision; without kernels."""
    monkeypatch.setattr(screening, "low_precision", lambda device, multiplications: request.param)
    return request.param


def nearest(query, items, k, leave_one_out, distance, **options):
    """The ``(Q, k)`` neighbours of all queries, and which were compared in full."""
    in_full = np.zeros(len(query), dtype=bool)
    found = torch.full((len(query), k), -7)
    blocks = neighbours.nearest_neighbours(
        query,
        items,
        np.full(len(query), k),
        **{
            "distance": distance,
            "leave_one_out": leave_one_out,
            "device": torch.device("cpu"),
            "budget": 2**28,
            "rows": np.arange(len(query)),
            "in_full": in_full,
            **options,
        },
    )
    for rows, index in blocks:
        found[torch.from_numpy(rows)] = index
    return found, in_full


def closeness(query, items, distance):
    """Minus the distance of each pair by its definition, row by row in float64.

    Vectors are first divided by their largest entry (cosine): squares of others leave float64 too.
    """
    query, items = query.double(), items.double()
    if distance == "cosine":
        query, items = (x / x.abs().amax(1, keepdim=True) for x in (query, items))
        lengths = [math.sqrt(math.fsum(v * v for v in item)) for item in items.tolist()]
        units = items / torch.tensor(lengths, dtype=torch.float64)[:, None]
        rows = [(units * (row / row.norm())).sum(1) for row in query]
    else:
        rows = [-(items - row).norm(dim=1) for row in query]
    return torch.stack(rows)


def assert_nearest(found, close, leave_one_out, rounding):
    """Each place holds the item that the oracle puts there, or one as close but for rounding."""
    if leave_one_out:
        close = close.clone().fill_diagonal_(-math.inf)
    k = found.shape[1]
    expected = close.sort(dim=1, descending=True, stable=True)
    assert all(len(set(row)) == k for row in found.tolist())
    difference = (close.gather(1, found) - expected.values[:, :k]).abs()
    assert difference.max() <= rounding


def near_ties(generator, number, size):
    """Steps between neighbours far below those of half precision."""
    base = torch.nn.functional.normalize(torch.randn(1, size, generator=generator))
    away = torch.randn(number, size, generator=generator)
    return base + 10.0 ** (-6 * torch.rand(number, 1, generator=generator)) * away


def random(generator, number, size):
    return torch.randn(number, size, generator=generator)


def clusters(generator, number, size):
    """Twenty groups, members closer to each other than any slack."""
    centres = torch.randn(20, size, generator=generator)[torch.arange(number) % 20]
    return centres + 1e-4 * torch.randn(number, size, generator=generator)


def duplicates(generator, number, size):
    return torch.randn(7, size, generator=generator)[torch.arange(number) % 7]


def of_all_lengths(generator, number, size):
    length = 10.0 ** (60 * torch.rand(number, 1, generator=generator) - 30)
    return torch.randn(number, size, generator=generator) * length


def denormal(generator, number, size):
    return torch.randn(number, size, generator=generator) * 1e-42 + 2e-45


def spiked(generator, number, size):
    """One large entry, and many that half precision cannot hold beside it."""
    x = 1e-5 * torch.randn(number, size, generator=generator)
    x[torch.arange(number), torch.arange(number) % 3] = 1.0
    return x


def rounded_badly(generator, number, size):
    """Every entry halfway between two numbers of half precision, all errors in one direction."""
    x = (1 + 2.0**-9 + 2.0**-12) * 2.0 ** -torch.randint(0, 3, (number, size), generator=generator)
    return x * (torch.randint(2, (number, size), generator=generator) * 2 - 1)


KINDS = (near_ties, random, clusters, duplicates, of_all_lengths, denormal, spiked, rounded_badly)
SEARCHES = [(kind, "cosine") for kind in KINDS]
SEARCHES += [(kind, "euclidean") for kind in KINDS if kind not in (of_all_lengths, denormal)]


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(("kind", "distance"), SEARCHES)
def test_no_neighbour_is_missed(kind, distance, leave_one_out, always):
    """500 queries of each of 14 kinds, twice, in two precisions: 28,000 against the oracle."""
    generator = torch.Generator().manual_seed(len(kind.__name__))
    items = kind(generator, 500, 48)
    query = items if leave_one_out else kind(generator, 500, 48)
    found, _ = nearest(query, items, 6, leave_one_out, distance)
    rounding = 2e-6 if distance == "cosine" else 1e-6  # float64, but near 0 a root has half of it
    assert_nearest(found, closeness(query, items, distance), leave_one_out, rounding)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_product_is_further_off_than_the_bound(kind, dtype, distance, always):
    generator = torch.Generator().manual_seed(1)
    x = kind(generator, 300, 61).to(dtype)
    x = x / x.abs().amax(dim=1, keepdim=True)
    x = x / x.norm(dim=1, keepdim=True)
    query, items = x[:100], x[100:]
    bias = None if distance == "cosine" else items.square().sum(1) / -2
    low = screening.round_rows(query, always, None if bias is None else 1.0)
    rounded = screening.round_rows(items, always, bias, padding=5)
    exact = query.double() @ items.double().T + (0.0 if bias is None else bias.double())
    coarse = low.rows.float() @ rounded.rows[: len(items)].float().T
    error = (exact - coarse.double()).abs().amax(dim=1)
    bound = screening.slack(low, rounded)
    assert (error <= bound).all()
    # And it is of the size of the rounding, not a number that covers everything.
    assert (bound < 8 * torch.finfo(always).eps + 1e-4).all()
    once = screening.product(low.rows, rounded.rows, torch.empty(100, 205, dtype=always))
    again = screening.before_rounding(once[:, :200].flatten()).view(100, 200)
    assert (again + bound[:, None] >= exact).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [512, 4096])
def test_sums_of_rows_that_half_precision_holds_are_within_the_bound(size, dtype, always):
    """Rounding takes nothing away: all that is wrong are the sums."""
    generator = torch.Generator().manual_seed(7)
    x = (torch.randn(60, size, generator=generator) / 2.0**7).to(always).to(dtype)
    low, items = screening.round_rows(x[:20], always), screening.round_rows(x[20:], always)
    assert not low.error.any()
    assert not items.error.any()
    exact = x[:20].double() @ x[20:].double().T
    error = (exact - (low.rows.float() @ items.rows.float().T).double()).abs().amax(dim=1)
    assert (error > 0).all()
    assert (error <= screening.slack(low, items)).all()


def float32_below(number):
    """Round to float32 as badly as a bound allows: always down."""
    return float(np.nextafter(np.float32(number), np.float32(0)))


@pytest.mark.parametrize("rounded_away", [0.0, 0.4], ids=["exact", "rounded"])
@pytest.mark.parametrize("size", [1, 61, 700])
def test_the_worst_float32_arithmetic_stays_within_the_bound(size, rounded_away, always):
    """No processor errs so much, so the operations are simulated one by one, in float64.

    All vectors have one direction, so the inequality of Cauchy and Schwarz is an equality. Each
    operation loses as much as the bound allows, in the direction that makes the difference grow.
    """
    unit = 1 / size**0.5
    held = torch.tensor(2.0 ** round(math.log2(unit)), dtype=always).item()
    query, item = (held * (1 + rounded_away * torch.finfo(always).eps * c) for c in (1.0, 0.9))
    coarse = fine = 0.0
    for _ in range(size):
        coarse += held * held
        fine += query * item
    of_both = size * held * held, size * query * item  # the sums of all magnitudes
    for _ in range(size):
        coarse -= 2.0**-23 * of_both[0]  # its product
        coarse -= 2.0**-23 * of_both[0]  # its sum
        fine += 2.0**-24 * of_both[1]  # these are rounded, not cut off
        fine += 2.0**-24 * of_both[1]

    def length(entry):
        squares = 0.0
        for _ in range(size):
            squares = float32_below(squares + float32_below(entry * entry))
        return torch.tensor([float32_below(math.sqrt(squares))])

    low, items = (
        screening.Rounded(
            torch.full((1, size), held, dtype=always), length(x), length(held), length(x - held)
        )
        for x in (query, item)
    )
    (bound,) = screening.slack(low, items).tolist()
    assert fine - coarse <= bound <= 1.005 * (fine - coarse) + 1e-11


def test_rows_whose_squares_float32_takes_for_0_are_within_the_bound(always):
    """Their measured lengths are 0, and so are the products of their halves."""
    query = torch.full((1, 64), 1e-25)
    items = torch.full((1, 64), 1 / 8)
    low, rounded = screening.round_rows(query, always), screening.round_rows(items, always)
    assert low.length == low.error == 0
    product = low.rows.double() @ rounded.rows.double().T
    exact = query.double() @ items.double().T
    assert product != exact
    assert (exact - product).abs() <= screening.slack(low, rounded)


def test_a_query_that_half_precision_cannot_hold_proves_nothing():
    items = screening.round_rows(torch.eye(4), torch.float16, torch.zeros(4))
    query = screening.round_rows(1e5 * torch.eye(4), torch.float16, 1.0)
    assert not (screening.slack(query, items) < 1e30).any()


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_of_equal_items_the_first_come_first_as_without_screening(distance, always):
    generator = torch.Generator().manual_seed(2)
    items = torch.randn(300, 24, generator=generator).repeat(3, 1)
    items = items[torch.randperm(900, generator=generator)]
    found, _ = nearest(items, items, 5, True, distance)
    same = (items[:, None] == items).all(2).fill_diagonal_(False)
    for row, first in enumerate(found[:, :2].tolist()):
        assert first == same[row].nonzero().flatten().tolist()


@pytest.mark.parametrize("budget", [60_000, 400_000, 2**28])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_blocks_of_any_size_find_the_same(budget, distance, always):
    generator = torch.Generator().manual_seed(3)
    items = torch.randn(2500, 16, generator=generator)
    usual = {"budget": budget, "rows": np.arange(40)}
    found, _ = nearest(items, items, 7, True, distance, **usual)
    expected, none = nearest(items, items, 7, True, distance, screens=False)
    assert torch.equal(found[:40], expected[:40])
    assert not none.any()


def test_queries_compared_in_full_are_counted(always):
    generator = torch.Generator().manual_seed(4)
    easy = torch.randn(1000, 32, generator=generator)
    easy -= easy.mean(dim=1, keepdim=True)  # at right angles to the others
    # All within a thousandth of each other: hundreds of candidates lie within the slack.
    hard = 10.0 * torch.ones(1, 32) + 1e-3 * torch.randn(1000, 32, generator=generator)
    items = torch.cat([easy, hard])
    _, in_full = nearest(items, items, 5, True, "cosine")
    assert in_full[1000:].all()
    assert not in_full[:1000].any()
    labels = torch.arange(2000) % 400
    result = evaluate_retrieval(items, labels)
    assert result.queries_in_full == 1000


def test_screening_is_given_up_where_it_proves_nothing(always, monkeypatch):
    generator = torch.Generator().manual_seed(5)
    items = torch.ones(1, 16) + 1e-4 * torch.randn(1200, 16, generator=generator)
    tried = []
    original = neighbours._candidates_only
    monkeypatch.setattr(
        neighbours, "_candidates_only", lambda *given: tried.append(1) or original(*given)
    )
    _, in_full = nearest(items, items, 3, True, "cosine", budget=1_000_000)
    assert len(tried) <= 2  # of the first block, with few candidates and with more
    assert 0 < in_full.sum() < 1200


def test_small_searches_are_not_screened():
    assert screening.low_precision(torch.device("cpu"), 1e6) is None
    assert screening.low_precision(torch.device("cuda"), 1e6) is None
    assert screening.low_precision(torch.device("cuda"), 1e12) == torch.float16
