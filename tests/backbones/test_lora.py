"""Adapters of low rank: what trains, and that a network without them computes the same.

peft is no part of the extra ``dev``: install ``weiss[lora]`` to run these.
"""

import copy
import sys

import pytest
import torch
from torch.nn import functional

from weiss.backbones import make_backbone
from weiss.backbones.lora import merged_state

RESNET = {"name": "resnet50_v1", "weights": "scratch", "freeze_bn": "statistics"}
VIT = {"name": "timm:vit_tiny_patch16_224", "weights": "scratch", "img_size": 32, "depth": 2}
SMALL = {"name": "small", "widths": (4, 6), "channels": 3}


@pytest.fixture(scope="module")
def peft(torchvision):
    return pytest.importorskip("peft", reason="needs pip install 'weiss[lora]'")


def build(arguments, train="lora", **more):
    torch.manual_seed(0)
    given = {**arguments, **more}
    return make_backbone(given.pop("name"), 5, train=train, **given)


def images(seed=0, size=32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (4, 3, size, size), dtype=torch.uint8, generator=generator)


def trained(model, steps=3):
    """Train a network a little; return the names of the tensors that have changed."""
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model.train()(images(step)).std(dim=0).sum().backward()
        optimizer.step()
    after = model.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}


CASES = pytest.mark.parametrize("arguments", [SMALL, VIT, RESNET], ids=["small", "vit", "resnet50"])


@pytest.mark.slow
@CASES
def test_adapters_start_as_the_network_and_only_they_and_the_head_train(
    peft, torchvision, arguments
):
    plain, model = build(arguments, "all").eval(), build(arguments).eval()
    model.head.load_state_dict(plain.head.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(images()), plain(images()), rtol=1e-4, atol=1e-5)
    changed = trained(model)
    assert changed
    assert all(".lora_" in name or name.startswith("head.") for name in changed)
    # B starts at zero, so that both train only if B does.
    assert any(".lora_A." in name for name in changed)
    assert any(".lora_B." in name for name in changed)


@pytest.mark.slow
@CASES
def test_a_merged_network_is_the_plain_one_and_computes_the_same(peft, torchvision, arguments):
    model = build(arguments)
    trained(model)
    merged = merged_state(model)
    plain = build(arguments, "all")
    start = copy.deepcopy(plain.state_dict())
    plain.load_state_dict(merged)  # exactly the same names
    with torch.no_grad():
        expected = model.eval()(images())
        torch.testing.assert_close(plain.eval()(images()), expected, rtol=1e-3, atol=1e-4)
    changed = {name for name, value in start.items() if not torch.equal(value, merged[name])}
    linear = [name for name, m in plain.trunk.named_modules() if type(m) is torch.nn.Linear]
    kind = torch.nn.Linear if linear else torch.nn.Conv2d
    names = [name for name, m in plain.trunk.named_modules() if type(m) is kind]
    assert changed == {f"trunk.{name}.weight" for name in names} | {
        name for name in start if name.startswith("head.")
    }
    before = merged["head.embedding.weight"].clone()
    trained(model)
    assert torch.equal(merged["head.embedding.weight"], before)  # a copy


@pytest.mark.slow
def test_an_adapter_adds_alpha_over_rank_times_b_a(peft, torchvision):
    """The law of Hu et al., written out for one layer."""
    model = build(VIT, lora_rank=3, lora_alpha=6.0)
    trained(model)
    layer = model.trunk.network.blocks[0].mlp.fc1
    a_RK, b_OR = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (a_RK.shape[0], b_OR.shape[1]) == (3, 3)
    weight = layer.base_layer.weight.clone()
    for o in range(0, len(weight), 50):
        for k in range(weight.shape[1]):
            weight[o, k] = weight[o, k] + (6.0 / 3) * sum(b_OR[o, r] * a_RK[r, k] for r in range(3))
    merged = merged_state(model)["trunk.network.blocks.0.mlp.fc1.weight"]
    torch.testing.assert_close(merged[::50], weight[::50].detach(), rtol=1e-4, atol=1e-6)
    x = torch.randn(2, weight.shape[1])
    expected = functional.linear(x, merged, layer.base_layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-5)


def test_without_peft_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"peft must be installed .*pip install 'weiss\[lora\]'"):
        build(SMALL)
