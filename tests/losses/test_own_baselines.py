"""Baselines that pytorch-metric-learning does not have, against nested loops of their equations."""

import pytest
import torch
from budgets import found

import weiss

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.tensor([0, 2, 2, 4, 0, 2, 1, 4, 4])


def center_loss(x, classifier, bias, centers, weight):
    total = x.new_zeros(())
    for i in range(len(x)):
        logits = [classifier[c] @ x[i] + bias[c] for c in range(len(centers))]
        total = total - (logits[Y[i]].exp() / sum(logit.exp() for logit in logits)).log()
        total = total + weight / 2 * sum((x[i] - centers[Y[i]]) ** 2)
    return total / len(x)


def test_center_loss_is_cross_entropy_and_the_pull_to_the_centres():
    loss = weiss.make_loss("center", 6, 3, weight=0.3).double()
    value, by_x, by_centers, *by_classifier = found(loss, X, Y)
    x = X.clone().requires_grad_()
    held = loss.loss
    classifier = [held.classifier_weight, held.classifier_bias]
    expected = center_loss(x, *classifier, held.centers.detach(), 0.3)
    torch.testing.assert_close(value, expected.detach())
    truth = torch.autograd.grad(expected, [x, *classifier])
    torch.testing.assert_close([by_x, *by_classifier], list(truth))
    assert by_centers.shape == loss.class_vectors.shape == (6, 3)


def test_sgd_at_the_published_rate_moves_the_centres_by_the_published_rule():
    loss = weiss.make_loss("center", 6, 3).double()
    before = loss.loss.centers.detach().clone()
    loss(X, Y).backward()
    torch.optim.SGD([loss.loss.centers], lr=0.5).step()
    for c in range(6):
        members = [i for i in range(len(X)) if Y[i] == c]
        step = sum((before[c] - X[i] for i in members), torch.zeros(3).double())
        expected = before[c] - 0.5 * step / (1 + len(members))
        torch.testing.assert_close(loss.loss.centers.detach()[c], expected)


def test_it_refuses_what_it_does_not_use():
    loss = weiss.make_loss("center", 5, 3)
    with pytest.raises(ValueError, match="ref_emb must be None"):
        loss(X.float(), Y, ref_emb=X.float(), ref_labels=Y)
    with pytest.raises(TypeError, match="has no argument 'wieght'"):
        weiss.make_loss("center", 5, 3, wieght=1.0)
