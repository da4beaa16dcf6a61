"""Distances against their definition, and their gradients where those do not exist."""

import loops
import pytest
import torch

from weiss.theory.distances import DISTANCES, cosine_distance, euclidean_distance, unit


@pytest.mark.parametrize("kind", DISTANCES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (40, 33, 17)])
def test_a_distance_is_that_of_the_definition(kind, shape):
    n, m, d = shape
    x, y = torch.randn(n, d).double(), torch.randn(m, d).double()
    given = DISTANCES[kind](x, y)
    for i in range(n):
        for j in range(m):
            assert given[i, j].item() == pytest.approx(
                loops.distance(kind, x[i], y[j]).item(), abs=1e-12
            )


def test_euclidean_distances_of_close_points_keep_their_digits():
    x = torch.randn(50, 64) + 100.0
    y = x + 1e-3
    exact = (x.double() - y.double()).norm(dim=1)
    torch.testing.assert_close(
        euclidean_distance(x, y).diagonal().double(), exact, rtol=1e-5, atol=0
    )


def test_equal_points_have_distance_and_gradient_zero():
    x = torch.ones(30, 4, requires_grad=True)
    distances = euclidean_distance(x, torch.ones(30, 4))
    distances.sum().backward()
    assert not distances.any()
    assert not x.grad.any()


def test_a_zero_vector_is_orthogonal_to_everything_and_gets_no_gradient():
    x = torch.zeros(1, 4, requires_grad=True)
    distances = cosine_distance(x, torch.randn(3, 4))
    distances.sum().backward()
    assert distances.tolist() == [[1.0, 1.0, 1.0]]
    assert not x.grad.any()


@pytest.mark.parametrize("length", [1e-15, 1e-5, 1.0, 1e5, 1e15])
def test_the_cosine_does_not_depend_on_the_length_of_vectors(length):
    torch.manual_seed(0)
    x, y = torch.randn(9, 5), torch.randn(7, 5)
    scaled = (x * length).requires_grad_()
    given = cosine_distance(scaled, y / length)
    torch.testing.assert_close(given, cosine_distance(x, y))
    given.sum().backward()
    assert scaled.grad.isfinite().all()
    assert scaled.grad.any()
    torch.testing.assert_close(unit(scaled).norm(dim=1), torch.ones(9))
