"""The magnet: closed forms, laws of the transition, exact against enumeration, simulation, loss."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

from weiss import MeanFieldContrastiveLoss, cli
from weiss.cli import magnet
from weiss.figures import magnet_cooling, magnet_transition
from weiss.losses import ContrastiveLoss
from weiss.magnet import (
    Magnet,
    cool,
    energy,
    exact,
    landscape,
    mean_field_energy,
    simulate,
    solve,
    transition,
)
from weiss.magnet.exact import _integrated
from weiss.magnet.mean_field import log_partition_less, mean_slope, mean_spin
from weiss.magnet.simulation import draw_spins


def random_spins(n, number, seed=0):
    spins = np.random.default_rng(seed).standard_normal((number, n))
    return spins / np.linalg.norm(spins, axis=1, keepdims=True)


# One spin


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_spin_in_a_field_agrees_with_many_digits(n):
    x = np.array([1e-3, 0.1, 0.199, 0.21, 4.0, 50.0, 199.0, 201.0, 1e5, 1e40])
    nu, means, slopes, logs = mpmath.mpf(n) / 2 - 1, [], [], []
    with mpmath.workdps(200):
        for each in map(mpmath.mpf, x.tolist()):
            below = mpmath.besseli(nu, each)
            mean = mpmath.besseli(nu + 1, each) / below
            means.append(float(mean))
            slopes.append(float(1 - (n - 1) * mean / each - mean**2))
            log = mpmath.log(below) + (nu + 1) * mpmath.log(2 * mpmath.pi)
            logs.append(float(log - nu * mpmath.log(each) - each))
    np.testing.assert_allclose(mean_spin(n, x), means, rtol=1e-12)
    np.testing.assert_allclose(mean_slope(n, x), slopes, rtol=1e-10)
    np.testing.assert_allclose(log_partition_less(n, x), logs, rtol=1e-12, atol=2e-15)
    np.testing.assert_array_equal(mean_spin(n, -x), -mean_spin(n, x))
    np.testing.assert_array_equal(log_partition_less(n, -x), log_partition_less(n, x))


@pytest.mark.parametrize("n", [2, 3])
def test_the_response_of_a_cold_magnet_falls_with_the_temperature(n):
    T = np.array([1e-6, 1e-7, 1e-8])
    # A spin in the field J N / T: the variance along it is (n - 1)/2 T^2, the response that over T.
    found = solve(Magnet(n), T).susceptibility
    np.testing.assert_allclose(found, (n - 1) / 2 * T, rtol=5e-6)
    # Many spins in a field are what mean field theory says.
    magnet = Magnet(n, field=0.5)
    for temperature, expected in zip(T, solve(magnet, T).susceptibility, strict=True):
        found = exact(magnet, temperature, 10**6).susceptibility
        assert found == pytest.approx(expected, rel=1e-4)


# Mean field theory


@pytest.mark.parametrize(("n", "field"), [(1, 0.3), (2, 0.0), (3, -0.3)])
def test_the_solution_is_self_consistent_and_the_least_of_the_landscape(n, field):
    magnet = Magnet(n, coupling=1.7, field=field)
    for T in (0.05, 0.2, 0.5, 1.0, 2.5):
        state = solve(magnet, T)
        M = state.magnetisation
        assert mean_spin(n, (1.7 * M + field) / T) == pytest.approx(M, abs=1e-13)
        heights = landscape(magnet, np.linspace(-1.0, 1.0, 401), T)
        assert state.free_energy <= heights.min() + 1e-14
        assert landscape(magnet, state.magnetisation, T) == pytest.approx(state.free_energy)


def power_law(x, y):
    """Return exponent and factor of ``y = factor x^exponent``."""
    exponent, log_factor = np.polyfit(np.log(x), np.log(y), 1)
    return exponent, math.exp(log_factor)


@pytest.mark.parametrize(("n", "coupling"), [(1, 1.0), (2, 2.5), (3, 1.0)])
def test_order_begins_with_the_critical_exponents_of_mean_field_theory(n, coupling):
    magnet, gap = Magnet(n, coupling), np.geomspace(1e-6, 1e-4, 9)
    critical = magnet.critical_temperature
    assert critical == coupling / n
    assert solve(magnet, critical).magnetisation == 0.0
    below, above = (solve(magnet, critical * (1 + side * gap)) for side in (-1, 1))
    assert not above.magnetisation.any()
    exponent, factor = power_law(gap, below.magnetisation)
    assert exponent == pytest.approx(0.5, abs=1e-4)
    # A_n(x) = x/n - x^3 / (n^2 (n + 2)) + ..., so that M^2 = (n + 2)/n * gap.
    assert factor**2 == pytest.approx((n + 2) / n, rel=1e-3)
    # The susceptibility diverges with power one, twice as strongly above.
    laws = [power_law(gap, state.susceptibility) for state in (above, below)]
    assert [exponent for exponent, _ in laws] == pytest.approx([-1.0, -1.0], abs=1e-3)
    assert laws[0][1] / laws[1][1] == pytest.approx(2.0, rel=0.02)
    assert solve(magnet, critical).susceptibility == np.inf
    fields = np.geomspace(1e-9, 1e-7, 5)
    M = [float(solve(Magnet(n, coupling, h), critical).magnetisation) for h in fields]
    assert power_law(fields, M)[0] == pytest.approx(1 / 3, abs=1e-3)


@pytest.mark.parametrize(
    ("n", "T", "field"), [(1, 0.2, 0.0), (2, 0.2, 0.1), (3, 0.9, 0.1), (2, 1.5, 0.0)]
)
def test_thermodynamics_hangs_together(n, T, field):
    def f(temperature, h):
        return float(solve(Magnet(n, field=h), temperature).free_energy)

    state, step = solve(Magnet(n, field=field), T), 1e-4
    assert -(f(T + step, field) - f(T - step, field)) / (2 * step) == pytest.approx(
        float(state.entropy), abs=1e-5
    )
    assert state.free_energy == pytest.approx(state.energy - T * state.entropy)
    up, down = (float(solve(Magnet(n, field=field + d), T).magnetisation) for d in (step, 0.0))
    assert (up - down) / step == pytest.approx(float(state.susceptibility), rel=2e-3)
    if n == 1:
        assert math.isnan(state.transverse)
    elif field:
        assert state.transverse == pytest.approx(state.magnetisation / field)


def test_the_entropy_runs_from_order_to_the_area_of_the_sphere():
    assert solve(Magnet(1), 50.0).entropy == pytest.approx(math.log(2), abs=1e-12)
    assert solve(Magnet(2), 50.0).entropy == pytest.approx(math.log(2 * math.pi), abs=1e-12)
    assert solve(Magnet(3), 50.0).entropy == pytest.approx(math.log(4 * math.pi), abs=1e-12)
    assert solve(Magnet(1), 0.02).entropy == pytest.approx(0.0, abs=1e-12)
    assert solve(Magnet(1), 0.0).entropy == 0.0
    assert solve(Magnet(3), 0.0).entropy == -np.inf
    # One quadratic mode for each direction a spin can turn: (n - 1)/2 log T.
    low, lower = solve(Magnet(3), [1e-3, 1e-4]).entropy
    assert (low - lower) / math.log(10) == pytest.approx(1.0, rel=1e-3)


def test_the_entropy_of_a_cold_ising_magnet_keeps_its_digits_and_is_never_negative():
    T = np.geomspace(1e-3, 0.1, 40)
    found = solve(Magnet(1), T).entropy
    # All but a share e^{-2x} of the spins agree, x = M / T = 1/T up to a smaller exponential.
    x = solve(Magnet(1), T).magnetisation / T
    np.testing.assert_allclose(found, (1 + 2 * x) * np.exp(-2 * x), rtol=1e-7)
    assert (solve(Magnet(1), np.geomspace(1e-8, 3.0, 500)).entropy >= 0).all()


@pytest.mark.parametrize(("n", "field", "T"), [(1, 0.0, 0.0), (2, 0.2, 0.3), (2, -0.2, 2.0)])
def test_a_state_holds_arrays_of_the_shape_of_the_temperatures(n, field, T):
    for given in (T, [T], [[T, 0.7]]):
        for name, value in vars(solve(Magnet(n, field=field), given)).items():
            assert isinstance(value, np.ndarray), name
            assert value.shape == np.shape(given), name


def test_at_zero_temperature_all_spins_agree():
    state = solve(Magnet(3, coupling=2.0, field=-0.5), [0.0, 2e-8])
    np.testing.assert_allclose(state.magnetisation, -1.0)
    np.testing.assert_allclose(state.energy, -1.5)
    np.testing.assert_allclose(state.free_energy, -1.5, atol=1e-6)
    np.testing.assert_allclose(state.susceptibility, 0.0, atol=1e-6)


# From the magnet to the loss


@pytest.mark.parametrize("n", [1, 3])
def test_the_mean_field_energy_exceeds_the_energy_by_the_square_of_the_fields_error(n):
    magnet, spins = Magnet(n, coupling=1.3, field=0.4), random_spins(n, 12)
    pairs = sum(float(a @ b) for a in spins for b in spins)
    hamiltonian = -1.3 / 12 / 2 * pairs - 0.4 * spins[:, 0].sum()
    assert energy(magnet, spins) == pytest.approx(hamiltonian / 12, rel=1e-12)
    mean = spins.mean(axis=0)
    assert mean_field_energy(magnet, spins, mean) == pytest.approx(hamiltonian / 12, rel=1e-12)
    off = mean_field_energy(magnet, spins, mean + 0.2 * np.eye(n)[0])
    assert off - hamiltonian / 12 == pytest.approx(1.3 / 2 * 0.04, rel=1e-10)


@pytest.mark.parametrize("n", [1, 3])
def test_cooled_to_zero_the_landscape_is_the_least_mean_field_energy(n):
    magnet, means = Magnet(n, coupling=1.4, field=0.2), np.linspace(-1.0, 1.0, 9)
    frozen = landscape(magnet, means, 0.0)
    for mean, height in zip(means, frozen, strict=True):
        field = np.eye(n)[0] * mean
        pull = 1.4 * field + 0.2 * np.eye(n)[0]
        aligned = np.tile(pull / np.linalg.norm(pull), (5, 1))
        assert mean_field_energy(magnet, aligned, field) == pytest.approx(height, abs=1e-14)
        others = [mean_field_energy(magnet, random_spins(n, 5, s), field) for s in range(20)]
        assert min(others) >= height - 1e-14
    gaps = [np.abs(landscape(magnet, means, T) - frozen).max() for T in (1e-1, 1e-2, 1e-3, 1e-4)]
    assert all(after < 0.3 * before + 1e-12 for before, after in itertools.pairwise(gaps))
    assert gaps[-1] < 2e-3


@pytest.mark.parametrize("n", [2, 3])
def test_the_attraction_of_a_mean_field_loss_is_the_mean_field_energy_of_the_magnet(n):
    spins = random_spins(n, 40, seed=n)
    field = random_spins(n, 1, seed=100)[0]
    height = mean_field_energy(Magnet(n), spins, field)
    samples, labels = torch.from_numpy(spins), torch.zeros(40, dtype=torch.long)
    loss = MeanFieldContrastiveLoss(1, n, pos_margin=-0.3).double()
    loss.load_state_dict({"fields": torch.from_numpy(field)[None]})
    assert loss(samples, labels).item() == pytest.approx(height + 0.5 + 0.3, abs=1e-12)
    pairs = ContrastiveLoss(pos_margin=-0.3)(samples, labels).item()
    assert pairs == pytest.approx(energy(Magnet(n), spins) + 0.65, abs=1e-12)


# Finitely many spins, exactly


@pytest.mark.parametrize(
    ("num_spins", "T", "field"), [(1, 0.4, 0.0), (2, 3.0, -0.6), (5, 0.4, 0.0), (10, 1.0, 0.25)]
)
def test_counting_agrees_with_a_sum_over_every_state(num_spins, T, field):
    magnet = Magnet(1, coupling=1.2, field=field)
    total = length = square = along = heat = second = 0.0
    for state in itertools.product((-1.0, 1.0), repeat=num_spins):
        M = sum(state) / num_spins
        H = -1.2 / num_spins / 2 * sum(state) ** 2 - field * sum(state)
        weight = math.exp(-H / T)
        total += weight
        length, square = length + weight * abs(M), square + weight * M * M
        along, heat = along + weight * M, heat + weight * H / num_spins
    along /= total
    found = exact(magnet, T, num_spins)
    second = num_spins * (square / total - along**2) / T
    expected = (length / total, square / total, along, heat / total)
    np.testing.assert_allclose(
        (found.length, found.square, found.along, found.energy), expected, atol=1e-13
    )
    assert found.susceptibility == pytest.approx(second, rel=1e-11, abs=1e-13)
    assert found.free_energy == pytest.approx(-T / num_spins * math.log(total), rel=1e-12)


@pytest.mark.parametrize("field", [0.1, -0.3])
def test_the_radial_integral_agrees_with_counting(field):
    magnet = Magnet(1, field=field)
    for T, num_spins in ((0.3, 7), (1.0, 100), (2.0, 2000)):
        counted = exact(magnet, T, num_spins)
        _, square, along, variance, _, log_z = _integrated(magnet, T, num_spins)
        assert square == pytest.approx(counted.square, rel=1e-9)
        assert along == pytest.approx(abs(counted.along), rel=1e-9)
        assert num_spins * variance / T == pytest.approx(counted.susceptibility, rel=1e-9)
        free_energy = -0.5 - abs(field) - T / num_spins * log_z
        assert free_energy == pytest.approx(counted.free_energy, rel=1e-9)


def two_spins(n, T, field):
    """Averages of two spins by brute force: angles to the axis, and between the two around it."""
    point, weight = np.polynomial.legendre.leggauss(60)
    theta, w = (point + 1) * math.pi / 2, weight * math.pi / 2
    phi = theta if n > 2 else np.array([0.0, math.pi])
    w_phi = w * np.sin(phi) ** (n - 3) if n > 2 else np.ones(2)
    a, b, p = np.meshgrid(theta, theta, phi, indexing="ij")
    measure = (w * np.sin(theta) ** (n - 2))[:, None] * (w * np.sin(theta) ** (n - 2))
    measure = measure[:, :, None] * w_phi
    between = np.cos(a) * np.cos(b) + np.sin(a) * np.sin(b) * np.cos(p)
    along = (np.cos(a) + np.cos(b)) / 2
    square = (1 + between) / 2
    gibbs = measure * np.exp((square + 2 * field * along) / T)
    gibbs /= gibbs.sum()
    M = (gibbs * along).sum()
    return {
        "length": (gibbs * np.sqrt(np.maximum(square, 0))).sum(),
        "square": (gibbs * square).sum(),
        "along": M,
        "energy": (gibbs * (-square / 2 - field * along)).sum(),
        "susceptibility": 2 * ((gibbs * along**2).sum() - M**2) / T,
    }


@pytest.mark.parametrize(
    ("n", "T", "field"), [(2, 0.2, 0.0), (3, 0.7, 0.0), (3, 0.4, 0.5), (2, 2.0, 0.1)]
)
def test_two_spins_agree_with_brute_force(n, T, field):
    expected = two_spins(n, T, field)
    found = exact(Magnet(n, field=field), T, 2)
    for name, value in expected.items():
        if name == "length" and field:
            assert math.isnan(found.length)
        else:
            # The root in |M| has a kink where the spins are opposite, which brute force feels.
            accuracy = 1e-4 if name == "length" else 1e-9
            assert getattr(found, name) == pytest.approx(value, abs=accuracy), name


@pytest.mark.parametrize(("n", "T"), [(2, 0.1), (2, 2.0), (3, 0.4)])
def test_the_mean_length_of_three_spins_agrees_with_brute_force(n, T):
    point, weight = np.polynomial.legendre.leggauss(300)
    theta = (point + 1) * math.pi / 2
    measure = weight * np.sin(theta) ** (n - 2)
    two = 2 * np.cos(theta / 2)  # the length of two, and the angle of the third to their sum
    square = two[:, None] ** 2 + 1 + 2 * two[:, None] * np.cos(theta)
    gibbs = measure[:, None] * measure * np.exp((square - 9) / (6 * T))
    expected = (gibbs * np.sqrt(np.maximum(square, 0))).sum() / gibbs.sum() / 3
    assert exact(Magnet(n), T, 3).length == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_mean_field_theory_is_what_many_spins_come_to(n):
    magnet = Magnet(n)
    for T in (0.5 * magnet.critical_temperature, 2 * magnet.critical_temperature):
        state = solve(magnet, T)
        gaps = []
        for num_spins in (250, 1000, 4000):
            found = exact(magnet, T, num_spins)
            gaps.append(abs(found.energy - float(state.energy)))
            assert found.free_energy == pytest.approx(float(state.free_energy), abs=5 / num_spins)
        assert found.fluctuation == pytest.approx(float(state.fluctuation), rel=0.01)
        for before, after in itertools.pairwise(gaps):  # corrections are of order 1/N
            assert before / after == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(("n", "N"), [(1, 100), (2, 2), (2, 10**6), (3, 3), (3, 100)])
def test_a_cold_magnet_follows_its_spin_waves(n, N):
    for T in (1e-6, 1e-8):
        found = exact(Magnet(n), T, N)
        # (N - 1)(n - 1) quadratic modes, and a direction of the whole that nothing holds.
        square = 1 - (n - 1) * (N - 1) / N * T
        assert found.square == pytest.approx(square, abs=1e-12 + 10 * T**2)
        assert found.length == pytest.approx(math.sqrt(square), abs=1e-7)
        assert found.energy == pytest.approx(-square / 2, abs=1e-12 + 10 * T**2)
        assert found.susceptibility == pytest.approx(N * square / (n * T), rel=1e-11)
        assert n == 1 or math.isnan(found.fluctuation)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_mean_is_longer_than_a_spin_and_without_a_field_none_is_preferred(n):
    for T, N in ((1e-8, 2), (1e-8, 5000), (1e-3, 3), (1e-3, 100)):
        found = exact(Magnet(n), T, N)
        assert found.length <= math.sqrt(found.square) <= 1.0
        assert found.along == 0.0
        for field in (0.3, -0.3):
            assert abs(exact(Magnet(n, field=field), T, N).along) <= 1.0
    for field in (0.0, 0.4, -0.4):
        one = exact(Magnet(n, field=field), 0.3, 1)
        assert one.length == one.square == 1.0
        assert one.fluctuation == 0.0


# Simulation


@pytest.mark.parametrize("n", [1, 2, 3])
def test_spins_are_drawn_from_their_distribution(n):
    fields = np.zeros((40_000, n))
    fields[:, -1] = 1.3
    drawn = draw_spins(np.random.default_rng(n), fields)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-12)
    along = drawn[:, -1]
    error = math.sqrt(mean_slope(n, 1.3) / len(drawn))
    assert abs(along.mean() - mean_spin(n, 1.3)) < 3 * error
    assert along.var() == pytest.approx(float(mean_slope(n, 1.3)), rel=0.03)
    assert np.abs(drawn[:, :-1].mean(axis=0)).max(initial=0.0) < 0.015


@pytest.mark.parametrize(
    ("n", "field", "temperatures", "N"),
    [
        (1, 0.2, [0.6, 1.0, 1.5], 16),
        (2, 0.0, [0.3, 0.5, 0.75], 16),
        (3, 0.2, [0.2, 0.33, 0.5], 16),
        # Cold copies in an outer field are on either side as it weighs them.
        (1, -0.05, [0.5], 50),
        (1, 0.002, [0.2], 50),
        (3, -0.05, [0.2], 50),
    ],
)
def test_the_simulation_agrees_with_the_exact_averages_within_its_errors(n, field, temperatures, N):
    magnet = Magnet(n, field=field)
    found = simulate(magnet, temperatures, N, copies=80, sweeps=60, warm_up=40, seed=5)
    for place, temperature in enumerate(temperatures):
        expected = exact(magnet, temperature, N)
        names = found.errors if N == 16 else ("along", "square", "energy")
        for name in names:
            value, error = getattr(expected, name), found.errors[name][place]
            if (name == "along" and not field) or math.isnan(value):
                continue
            assert abs(getattr(found, name)[place] - value) < 4 * error, name
            assert N > 16 or error < 0.3 * abs(value)


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others():
    one, same, other = (
        simulate(Magnet(3), [0.3], 8, copies=4, sweeps=5, warm_up=2, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one.length == same.length
    assert one.errors["length"] == same.errors["length"]
    assert one.length != other.length


@pytest.mark.parametrize("n", [1, 2, 3])
def test_spins_that_are_cooled_to_zero_agree(n):
    # Without coupling to anything at first, where a direction must still have unit length.
    spins = cool(Magnet(n), [1e10, *np.linspace(2.0, 0.0, 60)], 30, sweeps=2, seed=3)
    assert spins.shape == (61, 30, n)
    np.testing.assert_allclose(np.linalg.norm(spins, axis=2), 1.0, atol=1e-12)
    lengths = np.linalg.norm(spins.mean(axis=1), axis=1)
    assert lengths[:5].mean() < 0.5
    assert lengths[-1] > 0.999
    assert energy(Magnet(n), spins[-1]) == pytest.approx(-0.5, abs=1e-3)


# The picture


def small(n=2, **options):
    effort = {"num_lines": 9, "num_dots": 4, "copies": 4, "sweeps": 4}
    return transition(Magnet(n, coupling=2.0), 10, **(effort | options))


def test_a_transition_holds_theory_exact_and_simulated_values():
    found = small()
    assert found.dots["temperature"][-1] == pytest.approx(2.0)
    for T, value in zip(found.dots["temperature"], found.dots["length_exact"], strict=True):
        assert value == exact(found.magnet, float(T), 10).length
    assert found.lines["exact_length"].shape == found.lines["temperature"].shape
    gap = found.dots["length"] - found.dots["length_exact"]
    np.testing.assert_array_equal(found.deviations(), gap / found.dots["length_error"])


def test_the_command_draws_everything_and_says_what_it_found(tmp_path, capsys):
    magnet.magnet(tmp_path / "new", n="3,1", spins=30, seed=4, quick=True)
    said = capsys.readouterr().out
    for words in ("T_c = 0.3333 J N", "T_c = 1.0000 J N", "standard errors"):
        assert words in said
    assert "(at 1 of them no spin ever flipped); of 15 Gaussian numbers the largest is" in said
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {f"magnet.{suffix}" for suffix in ("png", "svg", "gif", "json")}
    told = json.loads((tmp_path / "new" / "magnet.json").read_text())
    assert [each["n"] for each in told["magnets"]] == [3, 1]
    assert [len(each["dots"]["length"]) for each in told["magnets"]] == [8, 8]
    assert (tmp_path / "new" / "magnet.gif").read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(("asked", "cooled"), [(5, 5), (300, 225)])
def test_where_nothing_varied_the_command_compares_with_nothing(
    tmp_path, capsys, monkeypatch, unrendered, asked, cooled
):
    def frozen(magnet, *_, **__):
        found = small(magnet.n)
        found.dots["length_error"][:] = 0.0
        found.lines["exact_fluctuation"][0] = np.nan  # lost, as it is for very many spins
        return found

    shown = []
    monkeypatch.setattr("weiss.magnet.transition", frozen)
    monkeypatch.setattr("weiss.figures.magnet_cooling", lambda *given: shown.append(given))
    magnet.magnet(tmp_path, n="2", spins=asked, quick=asked > 5)
    ((spins, temperatures, _),) = shown
    assert spins.shape == (len(temperatures), cooled, 2)
    assert (tmp_path / "magnet.png").exists()
    (told,) = json.loads((tmp_path / "magnet.json").read_text())["magnets"]
    assert told["lines"]["exact_fluctuation"][0] is None
    said = capsys.readouterr().out
    assert "by at most nan standard errors" in said
    assert "Gaussian" not in said


# Mistakes


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: Magnet(0), "n must be 1 .* got 0"),
        (lambda: Magnet(2.5), "n must be 1 .* got 2.5"),
        (lambda: Magnet(True), "n must be 1 .* got True"),
        (lambda: Magnet(2, coupling=0.0), "coupling must be greater than 0"),
        (lambda: Magnet(2, field=math.nan), "field must be finite"),
        (lambda: solve(Magnet(2), -0.1), "zero, or .* got -0.1"),
        (lambda: solve(Magnet(2), [0.1, math.nan]), "finite .* got nan"),
        (lambda: solve(Magnet(2), [0.1, math.inf]), "finite .* got inf"),
        (lambda: solve(Magnet(2, 10.0), 9e-8), "1e-08 of the coupling, which is 10; got 9e-08"),
        (lambda: landscape(Magnet(2), [0.5, 0.6], [1, 2, 3]), r"broadcast .* \(2,\)"),
        (lambda: exact(Magnet(2), 0.0, 3), "at least 1e-08 .* got 0"),
        (lambda: exact(Magnet(2), 1.0, 0), "num_spins must be at least 1 for exact; got 0"),
        (lambda: simulate(Magnet(2), [0.0], 5), "at least 1e-08 .* got 0"),
        (lambda: simulate(Magnet(2), [], 5), r"at least one number; got shape \(0,\)"),
        (lambda: cool(Magnet(2), [[1.0]], 5), r"flat list|shape \(1, 1\)"),
        (lambda: simulate(Magnet(2), [1.0], 0), "num_spins must be at least 1"),
        (lambda: simulate(Magnet(2), [1.0], 5, copies=1), "copies must be at least 2 .* got 1"),
        (lambda: simulate(Magnet(2), [1.0], 5, seed=-1), "seed must be at least 0; got -1"),
        (lambda: energy(Magnet(2), np.ones((3, 3))), r"shape \(N, 2\)"),
        (lambda: energy(Magnet(2), np.ones((3, 2))), "length 1; got one of length 1.41"),
        (lambda: mean_field_energy(Magnet(1), np.ones((3, 1)), np.ones(2)), "mean_D must be 1 fin"),
        (lambda: mean_field_energy(Magnet(1), np.ones((3, 1)), [math.nan]), r"got \[nan\]"),
        (lambda: transition(Magnet(2), 1), "num_spins must be at least 2 .* got 1"),
        (lambda: transition(Magnet(2, field=1.0), 5), "field must be 0 for transition; got 1"),
        (lambda: small(num_lines=0), "num_lines must be at least 1 for transition; got 0"),
        (lambda: small(num_dots=0), "num_dots must be at least 1 for transition; got 0"),
        (lambda: magnet_transition([], Path("none.png")), "at least one magnet"),
        (lambda: magnet_cooling(np.ones((2, 4, 2)), [1, 0], Path("none.png")), "must end in .gif"),
        (lambda: magnet_cooling(np.ones((2, 4, 3)), [1, 0], Path("a.gif")), r"shape \(frames, N, "),
        (lambda: simulate(Magnet(2), [1.0], 5, sweeps=2.5), "sweeps must be a whole number .* 2.5"),
        (lambda: solve(3, 0.3), "magnet must be a Magnet; got 3"),
        (lambda: energy(3, random_spins(3, 4)), "magnet must be a Magnet; got 3"),
        (lambda: transition(3, 5), "magnet must be a Magnet; got 3"),
    ],
)
def test_a_mistake_is_answered_in_words(mistake, words):
    with pytest.raises((ValueError, TypeError), match=words):
        mistake()


@pytest.mark.parametrize("given", ["0.3", True, 1j, [[0.1], [0.1, 0.2]]])
def test_what_is_no_temperature_is_answered_in_words(given):
    with pytest.raises(TypeError, match="temperature must be a number or an array of numbers; got"):
        solve(Magnet(2), given)


def test_temperatures_may_be_of_any_kind_of_number():
    for given in (1, np.float32(1), torch.tensor(1.0), Fraction(1), [Fraction(1)]):
        assert (solve(Magnet(2), given).energy == solve(Magnet(2), 1.0).energy).all()


def test_a_fluctuation_that_is_lost_to_rounding_is_not_told():
    for temperature, num_spins in ((0.0003, 100), (0.17, 1_000_000)):
        assert math.isnan(exact(Magnet(3), temperature, num_spins).fluctuation)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spins", "1"], "'--spins'"),
        (["--spins", "10001"], "'--spins'"),
        (["--seed", "-1"], "'--seed'"),
        (["--n", "4"], "--n must be 1, 2 or 3"),
        (["--out", "taken/new"], "Not a directory: 'taken/new'. Choose another name."),
    ],
)
def test_a_wrong_command_says_so_and_makes_nothing(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("somebody's")
    out = [] if "--out" in words else ["--out", "new/folder"]
    monkeypatch.setattr("sys.argv", ["weiss", "magnet", *out, *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
