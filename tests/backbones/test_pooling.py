"""Pooling by loops from the definition, and the generalised mean at its ends."""

import pytest
import torch

from weiss.backbones import POOLINGS, GeneralisedMeanPooling


def loops(name, maps, p=3.0, eps=1e-6):
    pooled = torch.zeros(maps.shape[:2], dtype=maps.dtype)
    for b in range(maps.shape[0]):
        for f in range(maps.shape[1]):
            cells = [cell.item() for row in maps[b, f] for cell in row]
            average, largest = sum(cells) / len(cells), max(cells)
            powers = sum(max(cell, eps) ** p for cell in cells) / len(cells)
            pooled[b, f] = {
                "avg": average,
                "max": largest,
                "avg+max": average + largest,
                "gem": powers ** (1 / p),
            }[name]
    return pooled


@pytest.fixture
def maps():
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_is_its_definition(name, maps):
    torch.testing.assert_close(POOLINGS[name]().double()(maps), loops(name, maps))


def test_gradients_of_the_generalised_mean_are_those_of_its_value(maps):
    pooling = GeneralisedMeanPooling().double()

    def value(x, p):
        return torch.func.functional_call(pooling, {"p": p}, (x,))

    assert torch.autograd.gradcheck(value, [maps.abs().add(0.1).requires_grad_(), pooling.p])


def test_the_generalised_mean_goes_from_average_to_maximum(maps):
    maps = maps.abs()
    average, largest = maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))
    torch.testing.assert_close(GeneralisedMeanPooling(p=1).double()(maps), average)
    torch.testing.assert_close(GeneralisedMeanPooling(p=0.2).double()(maps), average)
    between = GeneralisedMeanPooling().double()(maps)
    assert ((average < between) & (between < largest)).all()
    near = GeneralisedMeanPooling(p=500).double()(maps)
    torch.testing.assert_close(near, largest, rtol=0.01, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4])
@pytest.mark.parametrize("p", [3.0, 60.0])
def test_the_generalised_mean_stays_finite_in_half_precision(scale, p):
    maps = (torch.rand(2, 3, 4, 4) * scale).bfloat16().requires_grad_()
    pooling = GeneralisedMeanPooling(p=p)
    pooled = pooling(maps)
    pooled.float().sum().backward()
    assert pooled.dtype == torch.bfloat16
    assert pooled.isfinite().all()
    assert maps.grad.isfinite().all()
    assert pooling.p.grad.isfinite()
