"""Baselines that the paper does not have, against nested loops of their publications' equations."""

import math

import pytest
import torch
from budgets import found

import weiss
from weiss.losses import potential_field

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


def charge_energy(x, proxies, alpha, delta, nearest=0.01):
    """The energy of samples and proxies ``(C, M, D)``, pair by pair, less the least it can be."""
    charges = [(x[i] / x[i].norm(), int(Y[i])) for i in range(len(x))]
    for c in range(len(proxies)):
        charges += [(p / p.norm(), c) for p in proxies[c]]
    total = x.new_zeros(())
    for i, (r, own) in enumerate(charges):
        for j, (z, other) in enumerate(charges):
            if i == j:
                continue
            apart = (r - z).norm()
            if own == other:
                psi = -1 / delta**alpha if apart < delta else -1 / apart**alpha
                total = total + psi + 1 / delta**alpha
            else:
                inside = apart if apart > nearest else apart.new_tensor(nearest)
                psi = 1 / inside**alpha if apart < delta else 1 / delta**alpha
                total = total + psi - 1 / delta**alpha
    return total


@pytest.mark.parametrize("block", [2**24, 50])
@pytest.mark.parametrize(("alpha", "delta"), [(3.0, 0.2), (1.5, 0.9)])
def test_potential_field_is_the_energy_of_all_samples_and_proxies(alpha, delta, block, monkeypatch):
    monkeypatch.setattr(potential_field, "BLOCK", block)
    torch.manual_seed(0)
    settings = {"proxies_per_class": 2, "alpha": alpha, "delta": delta}
    loss = weiss.make_loss("potential_field", 5, 3, **settings).double()
    near = loss.loss.proxies.data
    near[:4] = X[:4] + 0.1 * torch.randn(4, 3).double()  # of classes 0 and 1, beside 0, 2, 2, 4
    near[4] = 3 * near[8]  # of classes 2 and 4, in the same place
    value, by_x, by_proxies = found(loss, X, Y)
    x = X.clone().requires_grad_()
    proxies = near.clone().requires_grad_()
    expected = charge_energy(x, proxies.view(5, 2, 3), alpha, delta)
    assert expected > 0
    torch.testing.assert_close(value, expected.detach())
    truth = torch.autograd.grad(expected, [x, proxies])
    torch.testing.assert_close([by_x, by_proxies], list(truth))


def test_charges_at_rest_have_the_least_energy():
    loss = weiss.make_loss("potential_field", 3, 3, proxies_per_class=2, delta=0.5).double()
    apart = torch.eye(3, dtype=torch.float64)
    loss.loss.proxies.data = apart.repeat_interleave(2, dim=0) + 0.05
    value, by_x, by_proxies = found(loss, apart, torch.arange(3))
    assert value == by_x.abs().max() == by_proxies.abs().max() == 0


def test_logits_of_potential_field_are_minus_the_potential_of_the_classes():
    loss = weiss.make_loss("potential_field", 4, 3, proxies_per_class=2, delta=0.8).double()
    proxies = loss.loss.proxies.detach().view(4, 2, 3)
    logits = loss.get_logits(X)
    for i in range(len(X)):
        potentials = []
        for own in range(4):
            total = 0.0
            for c in range(4):
                for p in proxies[c]:
                    apart = float((X[i] / X[i].norm() - p / p.norm()).norm())
                    inside, outside = min(apart, 0.8), max(apart, 0.8)
                    total += -1 / outside**3 if c == own else 1 / inside**3
            potentials.append(total)
        difference = logits[i] + torch.tensor(potentials, dtype=torch.float64)
        torch.testing.assert_close(difference, difference[:1].expand(4))


def test_potential_field_is_finite_for_equal_and_near_charges_of_all_accepted_rates():
    with pytest.raises(ValueError, match="alpha must be at most 16 .*; got 20"):
        weiss.make_loss("potential_field", 3, 4, alpha=20)
    with pytest.raises(ValueError, match="alpha must be at most"):
        weiss.make_loss("potential_field", 3, 4, alpha=200.0)
    loss = weiss.make_loss("potential_field", 3, 4, alpha=16.0)
    # The third is as near to the first as a force is felt; the second is the first.
    angle = 1.001 * potential_field.NEAREST
    turned = [math.cos(angle), math.sin(angle), 0.0, 0.0]
    embeddings = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0], turned], requires_grad=True)
    value = loss(embeddings, torch.arange(3))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().max() > 1e30


def test_potential_field_has_published_proxies_and_refuses_radii_that_mean_nothing():
    loss = weiss.make_loss("potential_field", 100, 8)
    assert loss.loss.proxies.shape == (1500, 8)
    assert loss.class_vectors is None
    assert weiss.make_loss("potential_field", 4, 8, proxies_per_class=1).class_vectors is not None
    for wrong, message in (
        ({"delta": 0.0}, "delta must be"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"proxies_per_class": 0}, "proxies_per_class must be"),
    ):
        with pytest.raises(ValueError, match=message):
            weiss.make_loss("potential_field", 4, 8, **wrong)
    with pytest.raises(ValueError, match="ref_emb must be None"):
        loss(torch.ones(9, 8), Y, ref_emb=torch.ones(9, 8), ref_labels=Y)


def cross_entropy(logits, label):
    exponents = [logit.exp() for logit in logits]
    return -(exponents[label] / sum(exponents)).log()


def cosines(x, vectors):
    return [(x @ v) / (x.norm() * v.norm()) for v in vectors]


def test_soft_triple_has_the_published_equation_and_settings():
    torch.manual_seed(0)
    loss = weiss.make_loss("soft_triple", 5, 3).double()
    centers = loss.loss.fc.detach().T.reshape(5, 10, 3)  # 10 centres a class
    total = 0.0
    for i in range(len(X)):
        logits = []
        for c in range(5):
            near = cosines(X[i], centers[c])
            weights = [(cos / 0.1).exp() for cos in near]  # gamma 0.1
            relaxed = sum(w * cos for w, cos in zip(weights, near, strict=True)) / sum(weights)
            logits.append(20 * (relaxed - (0.01 if c == Y[i] else 0.0)))  # lambda 20, margin 0.01
        total = total + cross_entropy(logits, int(Y[i])) / len(X)
    apart = 0.0
    for c in range(5):
        unit = [w / w.norm() for w in centers[c]]
        for s in range(10):
            for t in range(s + 1, 10):
                apart = apart + (2 + 1e-5 - 2 * unit[s] @ unit[t]).sqrt()
    total = total + 0.2 * apart / (5 * 10 * 9)  # tau 0.2
    torch.testing.assert_close(loss(X, Y).detach(), total)


def test_subcenter_arcface_has_the_published_equation_and_settings():
    torch.manual_seed(1)
    loss = weiss.make_loss("subcenter_arcface", 5, 3).double()
    centers = loss.loss.W.detach().T.reshape(5, 3, 3)  # 3 centres a class
    total = 0.0
    for i in range(len(X)):
        logits = []
        for c in range(5):
            cos = max(cosines(X[i], centers[c]))
            if c == Y[i]:
                angle, margin = cos.acos(), math.radians(28.6)  # 0.5 in radians, to 0.2 per cent
                inside = angle <= math.pi - margin
                cos = (angle + margin).cos() if inside else cos - margin * math.sin(margin)
            logits.append(64 * cos)
        total = total + cross_entropy(logits, int(Y[i])) / len(X)
    torch.testing.assert_close(loss(X, Y).detach(), total)
