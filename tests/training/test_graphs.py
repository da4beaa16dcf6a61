"""Which networks are captured as CUDA graphs, and what happens where the capture fails."""

import gc
import weakref

import pytest
import torch
from tiny import losses, tiny_recipe

from weiss._base.processes import Processes
from weiss.backbones import Embedder, ResNet, SmallNetwork
from weiss.runs import Run, recipe_from_dict
from weiss.training import graphs, step, train
from weiss.training.graphs import CapturedNetwork, can_be_captured, captured
from weiss.training.preparation import prepare

CUDA = torch.device("cuda")


def small_resnet(freeze_bn="statistics"):
    trunk = ResNet(18, num_classes=0)
    return Embedder(trunk, embedding_size=8, freeze_bn=freeze_bn).train()


def resnet_recipe(data, **changes):
    """The tiny experiment with a ResNet, whose settings are not those of the small network."""
    recipe = tiny_recipe(data, **changes).as_dict()
    for key in ("widths", "channels"):
        recipe["backbone"].pop(key, None)
    recipe["backbone"] |= {"name": "resnet18", "freeze_bn": "statistics", "weights": "scratch"}
    recipe["augment"]["size"] = recipe["evaluate"]["size"] = recipe["evaluate"]["resize"] = 32
    return recipe_from_dict(recipe)


def test_only_a_frozen_static_network_alone_on_a_gpu_is_captured(stripes):
    recipe, alone = tiny_recipe(stripes), Processes()
    assert can_be_captured(small_resnet(), recipe, alone, CUDA)
    for changes in (
        {"train__graphs": "false"},
        {"train__compile": "true"},
        {"train__accumulate": 2},
        {"train__precision": "fp16"},
    ):
        refusing = tiny_recipe(stripes, **changes)
        assert not can_be_captured(small_resnet(), refusing, alone, CUDA), changes
    assert not can_be_captured(small_resnet(), recipe, alone, torch.device("cpu"))
    assert not can_be_captured(small_resnet(), recipe, Processes(0, 2, 2), CUDA)
    assert not can_be_captured(small_resnet("none"), recipe, alone, CUDA)
    assert can_be_captured(small_resnet("none").eval(), recipe, alone, CUDA)
    assert not can_be_captured(Embedder(SmallNetwork(), embedding_size=8), recipe, alone, CUDA)
    hooked = small_resnet()
    hooked.trunk.layer4.register_forward_hook(lambda *_: None)
    assert not can_be_captured(hooked, recipe, alone, CUDA)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not can_be_captured(small_resnet(), recipe, alone, CUDA)
    finally:
        handle.remove()


def test_a_capture_that_fails_leaves_the_network_as_it_is(stripes, monkeypatch):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    made = prepare(resnet_recipe(stripes), torch.device("cpu"), Processes())
    with pytest.warns(UserWarning, match=r"not permitted.*train\.graphs=false"):
        forward = captured(made.model, made.recipe, made.stepper.precision, made.device)
    assert forward is made.model


def patch_forward(model, arguments):
    """Do as torch does: a module whose forward, found in itself, writes to the same place."""
    plain = model.forward
    shared = torch.zeros(len(arguments[0]), 16)

    def forward(given):
        assert model is not None  # it holds the module, and the module holds it
        return shared.copy_(plain(given).detach())

    model.forward = forward


@pytest.fixture
def made(stripes, monkeypatch):
    """A captured network; torch's part of it is an imitation."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", patch_forward)
    found = prepare(resnet_recipe(stripes), torch.device("cpu"), Processes())
    network = captured(found.model, found.recipe, found.stepper.precision, found.device)
    assert isinstance(network, CapturedNetwork)
    return [network]


def test_what_a_replay_wrote_is_not_written_over(made):
    forward = made.pop()
    images = torch.rand(2, 12, 3, 32, 32)
    first = forward(images[0])
    kept = first.clone()
    assert not torch.equal(forward(images[1]), kept)
    assert torch.equal(first, kept)
    # Another number of images is no replay.
    assert forward(images[0, :5]).shape == (5, 16)


def test_a_graph_is_freed_at_once_and_not_when_python_collects_cycles(made):
    forward = made.pop()
    patched = weakref.ref(forward._cast.forward)
    gc.disable()
    try:
        forward.release()
        assert patched() is None
    finally:
        gc.enable()


def test_a_released_stepper_begins_its_phase_again(stripes):
    made = prepare(resnet_recipe(stripes), torch.device("cpu"), Processes())
    images, labels = next(made.experiment.batches(0))
    for _ in range(2):
        made.stepper.set_phase(warming_up=False)
        assert made.stepper(images, labels)[0].isfinite()
        made.stepper.release()


def test_a_phase_and_a_run_free_their_graphs(stripes, tmp_path, undrawn, monkeypatch):
    released = []
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda *_: None)
    monkeypatch.setattr(CapturedNetwork, "release", lambda self: released.append(self))
    monkeypatch.setattr(step, "can_be_captured", lambda *_: True)
    train(resnet_recipe(stripes, train__epochs=2), tmp_path / "run", quiet=True)
    assert len(released) == len(set(map(id, released))) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replayed_run_learns_what_a_plain_one_learns(
    stripes, tmp_path, undrawn, monkeypatch, precision
):
    times = []
    monkeypatch.setattr(step, "captured", lambda *given: times.append(1) or graphs.captured(*given))
    recipe = resnet_recipe(
        stripes, train__device="cuda", train__precision=precision, optim__lr=1e-3
    ).as_dict()

    def run(name, with_graphs):
        recipe["train"]["graphs"] = with_graphs
        train(recipe_from_dict(recipe), tmp_path / name, quiet=True)
        return losses(tmp_path / name)

    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        plain = run("plain", with_graphs=False)
        assert not times
        replayed = run("replayed", with_graphs=True)
    assert len(times) == 2  # for warm-up and after it
    assert replayed == pytest.approx(plain, rel=1e-4 if precision == "fp32" else 2e-2)
    assert Run(tmp_path / "replayed").result()["peak_gpu_memory_gb"] > 0
