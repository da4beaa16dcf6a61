"""Layers folded into one operation against the same layers one by one."""

import pytest
import torch
from torch import nn

from weiss.backbones import BNInception, Embedder, ResNet, bn_inception, layers, resnet
from weiss.backbones.layers import Layers, can_be_folded


@pytest.fixture
def folding_here(monkeypatch):
    """Fold on the CPU too; return how many layers were folded so far."""
    folded = []

    def layers_of(pairs, images, wanted):
        return Layers(pairs if wanted else (), images.device.type)

    monkeypatch.setattr(resnet, "layers_of", layers_of)
    monkeypatch.setattr(bn_inception, "layers_of", layers_of)
    convolved = layers._convolved
    monkeypatch.setattr(layers, "_convolved", lambda *given: folded.append(1) or convolved(*given))
    return folded


def network(kind):
    torch.manual_seed(1)
    trunks = {
        "resnet18": lambda: ResNet(18, num_classes=0),
        "resnet50 v1": lambda: ResNet(50, "v1", num_classes=0),
        "resnet50 v1.5": lambda: ResNet(50, num_classes=0),
        "bn_inception": lambda: BNInception(num_classes=0),
    }
    trunk = trunks[kind]()
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.weight, module.running_var):
                nn.init.uniform_(value, 0.5, 1.5)
            for value in (module.bias, module.running_mean):
                nn.init.uniform_(value, -0.5, 0.5)
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return Embedder(trunk, embedding_size=16, freeze_bn="statistics").double()


def gradients(model, images):
    """Embeddings, and gradients of everything, of a made-up loss."""
    images = images.clone().requires_grad_()
    model.zero_grad()
    embeddings = model(images)
    torch.manual_seed(2)
    (embeddings * torch.randn_like(embeddings)).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return embeddings.detach(), {"images": images.grad, **found}


SIZES = {"resnet18": 1 + 2 * 8 + 3, "resnet50 v1": 53, "resnet50 v1.5": 53, "bn_inception": 69}


def assert_folded_is_plain(model, images):
    """Assert that embeddings and gradients do not depend on folding."""
    folded_embeddings, folded = gradients(model, images)
    with torch.no_grad():
        torch.testing.assert_close(model(images), folded_embeddings, rtol=1e-12, atol=1e-12)
    model.trunk.folds = False
    plain_embeddings, plain = gradients(model, images)
    torch.testing.assert_close(folded_embeddings, plain_embeddings, rtol=1e-9, atol=1e-11)
    for name, gradient in plain.items():
        assert (folded[name] - gradient).norm() < 1e-7 * gradient.norm(), name


@pytest.mark.parametrize("kind", ["resnet18", "resnet50 v1.5", "bn_inception"])
def test_folded_layers_give_the_same_embeddings_and_gradients(folding_here, kind):
    assert_folded_is_plain(network(kind), 255 * torch.rand(2, 3, 40, 46, dtype=torch.float64))
    assert len(folding_here) == 2 * SIZES[kind]  # with gradients and without


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(SIZES))
def test_folded_layers_give_the_same_on_a_gpu(kind):
    model = network(kind).cuda().to(memory_format=torch.channels_last)
    assert_folded_is_plain(model, 255 * torch.rand(3, 3, 64, 70, dtype=torch.float64).cuda())


def test_frozen_parameters_get_no_gradient(folding_here):
    model = network("resnet18")
    model.freeze_batch_norm("all")
    _, found = gradients(model, 255 * torch.rand(2, 3, 32, 32, dtype=torch.float64))
    norms = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert norms
    assert all(found[name] is None for name in norms)
    assert found["trunk.conv1.weight"].abs().max() > 0


def test_a_warm_up_costs_no_graph(folding_here):
    model = network("resnet18")
    for parameter in model.trunk_parameters():
        parameter.requires_grad_(False)
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    assert not model.trunk(images).requires_grad
    assert model(images).requires_grad


def test_bfloat16_is_as_near_to_float64_as_without_folding(folding_here):
    model = network("resnet18")
    images = 255 * torch.rand(4, 3, 64, 64, dtype=torch.float64)
    model.trunk.folds = False
    with torch.no_grad():
        exact = model(images)
        model = model.float()

        def error(folds):
            model.trunk.folds = folds
            with torch.autocast("cpu", torch.bfloat16):
                return float((model(images.float()) - exact).norm() / exact.norm())

        plain = error(folds=False)
        before = len(folding_here)
        folded = error(folds=True)
    assert len(folding_here) == before + SIZES["resnet18"]
    assert folded < 1.5 * plain < 0.1


class Noisy(nn.BatchNorm2d):
    """A subclass may do something else."""


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


CONV = nn.Conv2d(8, 8, 3)


@pytest.mark.parametrize(
    ("conv", "norm"),
    [
        (CONV, Noisy(8)),
        (CONV, nn.SyncBatchNorm(8)),
        (CONV, nn.BatchNorm2d(8, affine=False)),
        (CONV, nn.BatchNorm2d(8, track_running_stats=False)),
        (CONV, nn.BatchNorm2d(8, eps=1e-3)),
        (CONV, nn.Identity()),
        (CONV, hooked(nn.BatchNorm2d(8))),
        (nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8)),
        (nn.Conv2d(8, 8, 3, dilation=2), nn.BatchNorm2d(8)),
        (nn.Conv2d(8, 8, 3, padding="same"), nn.BatchNorm2d(8)),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8)),
    ],
    ids=str,
)
def test_what_is_no_plain_frozen_normalisation_is_left_alone(conv, norm):
    plain = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval())
    assert can_be_folded([plain])
    assert not can_be_folded([plain, (conv, norm.eval())])
    assert not can_be_folded([plain, (CONV, nn.BatchNorm2d(8).train())])  # batch statistics
    assert not can_be_folded([])


def test_hooks_on_shortcuts_and_on_all_modules_are_called(folding_here):
    seen = []
    images = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    model = network("resnet18").eval()
    shortcut = model.trunk.layer2[0].downsample
    handle = shortcut.register_forward_hook(lambda *_: seen.append("shortcut"))
    model(images)
    assert seen == ["shortcut"]
    handle.remove()
    for name in ("layer4", "layer4.1"):  # stages and blocks
        with_hook = model.trunk.get_submodule(name)
        handles = with_hook.register_forward_hook(lambda *given: seen.append(given[2].shape))
        model(images)
        handles.remove()
    assert seen == ["shortcut", (1, 512, 1, 1), (1, 512, 1, 1)]
    folding_here.clear()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(module) if isinstance(module, nn.Conv2d) else None
    )
    try:
        model(images)
    finally:
        handle.remove()
    assert len(seen) == 3 + SIZES["resnet18"]
    assert not folding_here
    before = model(images)
    assert len(folding_here) == SIZES["resnet18"]
    shortcut.append(nn.Identity())  # another shortcut is computed as it is
    folding_here.clear()
    torch.testing.assert_close(model(images), before)
    assert not folding_here


def test_a_convolution_of_two_norms_has_both(folding_here):
    conv = nn.Conv2d(3, 3, 1, bias=False)
    norms = [nn.BatchNorm2d(3).eval() for _ in range(2)]
    nn.init.constant_(norms[1].bias, 2.0)
    x = torch.rand(1, 3, 4, 4)
    layers = Layers([(conv, norm) for norm in norms])
    for norm in norms:
        torch.testing.assert_close(layers(x, conv, norm, relu=False), norm(conv(x)))
    assert len(folding_here) == 2


@pytest.mark.parametrize(
    ("dtype", "under", "result"),
    [
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float64, torch.bfloat16, torch.float64),
        (torch.bfloat16, None, torch.bfloat16),
        (torch.float32, torch.float16, torch.float16),
    ],
    ids=str,
)
def test_precision_is_that_of_plain_layers(folding_here, dtype, under, result):
    conv, norm = nn.Conv2d(3, 8, 1).to(dtype), nn.BatchNorm2d(8).eval().to(dtype)
    nn.init.constant_(norm.bias, 5.0)
    x = torch.rand(4, 3, 160, 160, dtype=dtype)
    with torch.autocast("cpu", under or torch.bfloat16, enabled=under is not None):
        out = Layers([(conv, norm)])(x, conv, norm)
        assert out.dtype == norm(conv(x)).dtype == result
    # The gradient of a bias, summed over 4 x 160 x 160 places, is no number in float16.
    assert bool(folding_here) == (result != torch.float16)
    out.float().sum().backward()
    assert norm.bias.grad.isfinite().all()
    if result == torch.float16:
        assert norm.bias.grad.max() == 4 * 160 * 160


def test_tracers_and_the_cpu_see_the_plain_layers_and_stages_stand_alone(monkeypatch):
    monkeypatch.setattr(layers, "_convolved", lambda *_: pytest.fail("folded"))
    trunk = ResNet(18, num_classes=0).eval()
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        traced = torch.fx.symbolic_trace(trunk)
        torch.testing.assert_close(traced(images), trunk(images))
        assert trunk.layer1(torch.rand(1, 64, 8, 8)).shape == (1, 64, 8, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(SIZES))
def test_half_precision_on_a_gpu_is_as_near_to_float32_as_without_folding(monkeypatch, kind):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = network(kind).float().cuda().to(memory_format=torch.channels_last)
    images = 255 * torch.rand(8, 3, 96, 96).cuda()
    model.trunk.folds = False
    exact_embeddings, exact = gradients(model, images)

    def errors(folds):
        model.trunk.folds = folds
        with torch.autocast("cuda", torch.bfloat16):
            embeddings, found = gradients(model, images)
        names = [name for name in exact if name != "images"]
        far = sum((found[n] - exact[n]).square().sum() / exact[n].square().sum() for n in names)
        return (embeddings - exact_embeddings).norm() / exact_embeddings.norm(), far / len(names)

    folded, plain = errors(folds=True), errors(folds=False)
    for with_folding, without in zip(folded, plain, strict=True):
        assert with_folding < 2 * without


@pytest.mark.gpu
def test_memory_that_nothing_has_written_is_not_read():
    # torch hands the unwritten output to cuDNN as a summand with the factor 0.
    conv, norm = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64).eval()
    pair = (conv.cuda().to(memory_format=torch.channels_last), norm.cuda())
    x = torch.rand(16, 64, 56, 56, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        layers = Layers([pair], autocast_for="cuda")
        wanted = torch.relu(norm(conv(x)))
        for _ in range(3):
            poison = torch.full((2**28,), torch.nan, dtype=torch.bfloat16, device="cuda")
            del poison
            found = layers(x, *pair)
            assert found.isfinite().all()
            assert (found - wanted).norm() < 0.02 * wanted.norm()
