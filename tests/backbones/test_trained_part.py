"""Which part of a network trains, and that the rest does not change at all."""

import copy
import pickle

import pytest
import torch

from weiss.backbones import Embedder, ResNet, make_backbone
from weiss.backbones.trained_part import stages_after, train_only

WIDTHS = (4, 6, 8)
STAGES = ("stem", "stage1", "stage2", "stage3")


def small(train="all", **arguments):
    torch.manual_seed(0)
    return make_backbone("small", 5, widths=WIDTHS, train=train, **arguments)


def images(seed=0, size=32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (6, 3, size, size), dtype=torch.uint8, generator=generator)


def changed_by_training(model, size=32):
    """Train with weight decay; return the names of the tensors that are other ones afterwards."""
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    for step in range(2):
        optimizer.zero_grad()
        model.train()(images(step, size)).std(dim=0).sum().backward()
        optimizer.step()
    after = model.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}


def named_after_stage(names, number):
    """Return the names of a stage of the small network, counted from 0, the stem."""
    prefix = "trunk.stem." if number == 0 else f"trunk.stages.{number - 1}."
    return {name for name in names if name.startswith(prefix)}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_exactly_the_last_stages_train_with_their_statistics_and_the_head(count):
    model = small(f"last:{count}")
    names = set(model.state_dict())
    expected = {name for name in names if name.startswith("head.")}
    for number in range(len(STAGES) - count, len(STAGES)):
        expected |= named_after_stage(names, number)
    assert changed_by_training(model) == expected


@pytest.mark.parametrize("way", ["built", "thawed by hand", "copied", "pickled", "evaluated"])
def test_nothing_of_a_frozen_trunk_changes_neither_weights_nor_statistics(way):
    model = small("frozen", pooling="gem")
    if way == "thawed by hand":
        model.requires_grad_(True)
    elif way == "copied":
        model = copy.deepcopy(model)
    elif way == "pickled":
        model = pickle.loads(pickle.dumps(model))
    elif way == "evaluated":
        model.eval()
    assert changed_by_training(model) == {"head.embedding.weight", "head.embedding.bias"}
    assert not any(module.training for module in model.trunk.modules())


def test_a_frozen_trunk_computes_what_it_computes_in_evaluation():
    model = small("frozen")
    with torch.no_grad():
        assert torch.equal(model.train()(images()), model.eval()(images()))


def test_a_warm_up_does_not_thaw_what_is_frozen():
    model = small("last:1")
    for thawed in (False, True):
        for parameter in model.trunk_parameters():
            parameter.requires_grad_(thawed)
    trains = {name for name, p in model.trunk.named_parameters() if p.requires_grad}
    assert trains
    assert all(name.startswith("stages.2.") for name in trains)
    model.freeze_batch_norm("all")
    model.freeze_batch_norm("none")  # which thaws normalisation of the last stage alone
    assert {name for name, p in model.trunk.named_parameters() if p.requires_grad} == trains


def bn_inception():
    return make_backbone("bn_inception", 4, weights="scratch")


def resnet():
    return Embedder(ResNet(18, num_classes=0), 4)


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (small, STAGES),
        (resnet, ("stem", "layer1", "layer2", "layer3", "layer4")),
        (bn_inception, ("stem", "inception_3", "inception_4", "inception_5")),
    ],
)
def test_every_parameter_of_a_trunk_is_in_one_stage_and_stages_are_in_the_order_of_a_pass(
    build, stages
):
    model = build().eval()
    found = model.trunk.parameters_by_stage()
    assert tuple(found) == stages
    assert_partition(model)
    # The order of a pass, as seen by its hooks.
    names = {id(p): name for name, parameters in found.items() for p in parameters}
    seen = []

    def note(module, *_):
        seen.extend(names[id(p)] for p in module.parameters(recurse=False))

    for module in model.trunk.modules():
        module.register_forward_hook(note)
    with torch.no_grad():
        model(images(size=64))
    assert tuple(dict.fromkeys(seen)) == stages


def assert_partition(model):
    """Assert that the stages hold every parameter of the trunk once."""
    listed = [id(p) for stage in model.trunk.parameters_by_stage().values() for p in stage]
    assert sorted(listed) == sorted(id(p) for p in model.trunk.parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 3}, 4),
        ("mobilenetv3_small_050", {}, None),
    ],
)
def test_networks_of_timm_have_stages_too(torchvision, name, arguments, count):
    torch.manual_seed(0)
    model = make_backbone(f"timm:{name}", 4, weights="scratch", train="last:1", **arguments)
    stages = model.trunk.parameters_by_stage()
    assert count in (None, len(stages))
    assert_partition(model)
    trains = {p for p in model.trunk.parameters() if p.requires_grad}
    assert trains == set(list(stages.values())[-1])
    assert trains < set(model.trunk.parameters())


def test_stages_after_counts_from_the_end():
    model = small()
    found = stages_after(model)
    for name, parameter in model.trunk.named_parameters():
        parts = name.split(".")
        number = 0 if parts[0] == "stem" else 1 + int(parts[1])
        assert found[parameter] == len(STAGES) - 1 - number


BAD = {
    "unknown": ("some", "'all', 'frozen', 'last:N' .* got 'some'"),
    "none of them": ("last:0", "got 'last:0'"),
    "too many": ("last:5", "N of at most 4 for small.*, whose stages are stem, .*'all'"),
}


@pytest.mark.parametrize(("part", "message"), BAD.values(), ids=BAD)
def test_a_part_that_a_network_does_not_have_is_refused(part, message):
    with pytest.raises(ValueError, match=message):
        small(part)


def test_a_network_without_stages_is_named():
    model = make_backbone("features", 4, num_features=3)
    with pytest.raises(ValueError, match="'all', 'frozen' or 'lora' for features"):
        train_only(model, "last:1")
    with pytest.raises(ValueError, match="layer_decay must be 1 for features"):
        stages_after(model)
