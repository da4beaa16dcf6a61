"""Links: two scales, one meaning."""

import pytest
import torch

from weiss.theory.interactions import Interactions, LinearLink, LogLink

LINKS = {"linear": (LinearLink(), lambda x: x), "log": (LogLink(3.0), torch.log)}


@pytest.mark.parametrize("name", LINKS)
def test_sums_on_the_scale_of_a_link_are_plain_sums_elsewhere(name):
    link, to_scale = LINKS[name]
    plain = torch.rand(6, 4).double() + 0.1
    x = to_scale(plain)
    segment = torch.tensor([2, 0, 0, 3, 2, 2])
    expected = torch.zeros(5, 4).double()
    for row, s in zip(plain, segment, strict=True):
        expected[s] += row
    given = link.segment_sum(x, segment, 5)
    full = [0, 2, 3]
    torch.testing.assert_close(given[full], to_scale(expected[full]))
    assert (given[[1, 4]] == link.empty(torch.float64)).all()
    torch.testing.assert_close(link.sum(x, 0), to_scale(plain.sum(0)))
    torch.testing.assert_close(link.add(x, x), to_scale(2 * plain))
    torch.testing.assert_close(link.times(x, torch.tensor(0.3)), to_scale(0.3 * plain))
    value = torch.log1p(plain) / 3 if name == "log" else plain
    torch.testing.assert_close(link.apply(x), value)
    undivided = torch.log1p(plain) if name == "log" else plain
    torch.testing.assert_close(link.undivided(x), undivided)


@pytest.mark.parametrize("name", LINKS)
def test_an_empty_sum_adds_nothing_and_has_no_gradient(name):
    link, _ = LINKS[name]
    nothing = torch.full((2,), link.empty(torch.float32), requires_grad=True)
    something = torch.tensor([-50.0, 3.0])
    assert torch.equal(link.add(something, nothing), something)
    value = link.apply(link.add(nothing, nothing))
    assert value.tolist() == [0.0, 0.0]
    if name == "log":
        value.sum().backward()
        assert not nothing.grad.any()


def test_segments_do_not_overflow():
    link = LogLink(1.0)
    x = torch.tensor([1e4, 1e4, -1e4], requires_grad=True)
    total = link.segment_sum(x, torch.tensor([0, 0, 1]), 2)
    torch.testing.assert_close(total, torch.tensor([1e4 + 0.6931, -1e4]))
    total.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.5, 0.5, 1.0]))


def test_interactions_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Interactions()
