"""Training a part of a network: on kept features, the last stages, each stage at its own rate."""

import hashlib
import math
import shutil
import signal
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import assert_same_run, damage, metrics, tiny_recipe
from torch.nn.functional import normalize

from weiss._base import draws
from weiss._base.processes import Processes
from weiss._base.tensor_files import read_tensors
from weiss.backbones import Embedder
from weiss.catalogue import build_index
from weiss.catalogue.export import export_run
from weiss.catalogue.networks import network_of_file, network_of_run
from weiss.data import CentreCrop, RandomCrop
from weiss.runs import Run
from weiss.training import StoppedError, evaluate_run
from weiss.training.preparation import prepare

CPU = torch.device("cpu")
FROZEN = {
    "backbone__train": "frozen",
    "train__precision": "fp32",  # on a CPU with bfloat16 kept features would be in that
    "augment__views": 2,
    "optim__clip_value": 0,
    "train__epochs": 2,
}


@pytest.fixture
def frozen(run, tmp_path):
    """Train a tiny run on kept features, with the cache in the folder of this test."""

    def one(name="frozen", **changes):
        return run(name, **{**FROZEN, "data__cache": tmp_path / "cache", **changes})

    return one


@pytest.fixture
def passes(monkeypatch):
    """The number of images of each pass through a trunk."""
    seen = []

    def features(model, images, real=Embedder.features):
        seen.append(len(images))
        return real(model, images)

    monkeypatch.setattr(Embedder, "features", features)
    return seen


def prepared(data, **changes):
    return prepare(tiny_recipe(data, **changes), CPU, Processes())


def model_of(folder):
    tensors, _ = read_tensors(Path(folder) / "model.safetensors")
    return tensors


def view_of(made, row, number):
    """Return the features (1, F) of one item in a random view, or in its centre crop, None."""
    pipeline, recipe = made.experiment.pipeline, made.recipe
    rows = np.array([row])
    if number is None:
        crop = CentreCrop(recipe.evaluate.size, recipe.evaluate.resize)
        (batch,) = pipeline.evaluation(crop, rows=rows, batch_size=1)
    else:
        augment = recipe.augment
        crop = RandomCrop(augment.size, augment.area, augment.ratio, augment.flip, seed=0)
        content = made.experiment.table.source.file(row).read_bytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        place = np.frombuffer(digest[:8], dtype=np.uint64)
        (batch,) = pipeline.random_crops(crop, number, place, rows=rows, batch_size=1)
    with torch.no_grad():
        return made.model.features(batch.images)


@pytest.mark.parametrize("views", [0, 2])
def test_a_run_on_kept_features_is_one_that_computes_the_features_of_every_image_in_every_step(
    frozen, stripes, views
):
    """The oracle shows one image at a time to the trunk, in the view that the step draws."""
    folder = frozen(augment__views=views, data__split="all")
    made = prepared(stripes, **{**FROZEN, "augment__views": views, "data__split": "all"})
    model, loss, recipe = made.model, made.loss, made.recipe
    optimizer, labels = made.stepper.optimizer, made.experiment.train_labels()
    model.train()
    found, rows = [], made.experiment.train_rows
    for epoch in range(recipe.train.epochs):
        batches = made.experiment.sampler.batches(epoch)
        total = 0.0
        for step, batch in enumerate(batches):
            features = []
            for place, chosen in enumerate(batch):
                number = None
                if views:
                    position = np.array(step * len(batch) + place)
                    drawn = draws.uniform(recipe.seed, draws.VIEWS, epoch, position)
                    number = math.floor(float(drawn) * views)
                features.append(view_of(made, rows[chosen], number))
            value = loss(normalize(model.head(torch.cat(features)), dim=1), labels[batch])
            for group in optimizer.param_groups:
                progress = epoch + (step + 0.5) / len(batches)
                group["lr"] = group["rate"] * recipe.schedule.factor(progress, 2)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item()
        found.append(total / len(batches))
    assert [line["loss"] for line in metrics(folder)] == pytest.approx(found, rel=1e-4)
    tensors = model_of(folder)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(tensors[name], value, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(tensors["loss.fields"], loss.fields.detach(), rtol=1e-3, atol=1e-4)


def test_a_frozen_run_changes_the_head_alone_and_is_measured_as_any_other(frozen, stripes, passes):
    folder = frozen()
    # 60 images, then two views of the 36 that train: each in full passes.
    assert passes == [32, 32, *2 * [32, 32]]
    start = prepared(stripes, **FROZEN).model.state_dict()
    tensors = model_of(folder)
    for name, value in start.items():
        assert torch.equal(tensors[name], value) == (not name.startswith("head.")), name
    again, result = evaluate_run(folder, device="cpu").summary(), Run(folder).result()
    for name, value in again.items():
        assert result[name] == pytest.approx(value, abs=0.02), name


def test_kept_features_serve_every_run_of_the_same_trunk_and_images(
    frozen, stripes, tmp_path, passes
):
    frozen("first")
    del passes[:]
    frozen("another loss and head", loss__name="proxy_anchor", seed=0, augment__views=1)
    assert not passes
    frozen("another seed, which draws another trunk", seed=1, augment__views=0)
    assert passes == [32, 32]
    del passes[:]
    frozen("decoded in another way", data__scaled_decoding="true", augment__views=0)
    assert passes == [32, 32]
    del passes[:]
    copied = shutil.copytree(stripes, tmp_path / "elsewhere")
    more = copied / "class0"
    shutil.copyfile(more / "0.png", more / "twice.png")  # known by its content
    shutil.copyfile(stripes / "class1" / "0.png", more / "0.png")  # content of another one
    frozen("moved", data=copied, augment__views=0)
    assert not passes


def test_damaged_features_are_computed_again_and_the_run_is_the_same(frozen, tmp_path, passes):
    whole, files = frozen("whole"), sorted((tmp_path / "cache" / "features").rglob("*.safetensors"))
    assert len(files) == 3  # the centre and two views
    del passes[:]
    damage(files[0])
    with pytest.warns(UserWarning, match="is damaged: .* It is deleted and computed again"):
        again = frozen("again")
    assert passes
    assert_same_run(whole, again)


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(frozen, tmp_path):
    whole = frozen("whole")
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="features could not be kept .* computes them again"):
        again = frozen("again", data__cache=tmp_path / "file", data__keep="memory")
    assert_same_run(whole, again)


def test_a_run_stopped_while_it_computes_features_is_the_run_that_was_not(
    frozen, tmp_path, monkeypatch
):
    whole = frozen("whole")
    shutil.rmtree(tmp_path / "cache")
    stops, done = 0, set()

    def features(model, images, real=Embedder.features):
        if (key := images.numpy().tobytes()) not in done:
            done.add(key)
            signal.raise_signal(signal.SIGINT)
        return real(model, images)

    monkeypatch.setattr(Embedder, "features", features)
    while not (tmp_path / "stopped" / "result.json").exists():
        try:
            frozen("stopped", resume=stops > 0)
        except StoppedError:
            stops += 1
    assert stops > 2
    assert_same_run(tmp_path / "stopped", whole)


def test_stages_are_unfrozen_after_a_warm_up_on_features(run, stripes, tmp_path, passes):
    changes = {
        "backbone__train": "last:1",
        "train__warmup_on": "features",
        "train__warmup_epochs": 2,
        "data__cache": tmp_path / "cache",
        "data__split": "all",  # nothing is measured: the last network is kept
    }
    start = prepared(stripes, **changes).model.state_dict()
    warm = run("warm", **changes, train__epochs=2)
    assert passes == [32, 32]
    whole = run("whole", **changes, train__epochs=3)
    assert passes[2:] == 5 * [12]
    for name, value in start.items():
        is_head, is_last = name.startswith("head."), name.startswith("trunk.stages.1.")
        assert torch.equal(model_of(warm)[name], value) == (not is_head), name
        assert torch.equal(model_of(whole)[name], value) == (not is_head and not is_last), name


@pytest.mark.parametrize("train", ["all", "last:2"])
def test_every_stage_has_the_rate_of_its_depth(stripes, train):
    decay = 0.5
    optim = {"optim__layer_decay": decay, "optim__lr": 0.01, "optim__class_lr": 0.3}
    made = prepared(stripes, backbone__train=train, backbone__widths="[4, 6, 8]", **optim)
    rates = {}
    for group in made.stepper.optimizer.param_groups:
        for parameter in group["params"]:
            assert id(parameter) not in rates
            rates[id(parameter)] = group["lr"]
    expected = {id(made.loss.fields): 0.3}
    for parameter in made.model.head.parameters():
        expected[id(parameter)] = 0.01
    trunk = made.model.trunk
    parts = [trunk.stem, *trunk.stages]
    for number, part in enumerate(parts):
        rate = 0.01
        for _ in (*parts[number + 1 :], "the head"):
            rate *= decay
        for parameter in part.parameters():
            if train == "all" or number >= len(parts) - 2:
                expected[id(parameter)] = rate
    assert rates == pytest.approx(expected)


def test_rates_of_stages_have_names_and_follow_the_schedule(run):
    lines = metrics(run(optim__layer_decay=0.5, train__epochs=2, schedule__every=1))
    one = {"network": 0.01, "fields": 0.05, "network.stage2": 0.005}
    one |= {"network.stage1": 0.0025, "network.stem": 0.00125}
    assert lines[0]["lr"] == pytest.approx(one)
    assert lines[1]["lr"] == pytest.approx({name: rate / 2 for name, rate in one.items()})


# Where fields start


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("train", ["all", "frozen"])
def test_fields_can_start_at_the_class_means_of_the_network_before_training(
    run, stripes, tmp_path, monkeypatch, distance, train
):
    from weiss.training import trainer

    started = []

    def placed(loss, *given, real=trainer.place_fields):
        real(loss, *given)
        started.append(loss.fields.detach().clone())

    monkeypatch.setattr(trainer, "place_fields", placed)
    changes = {
        "fields__start": "class_means",
        "backbone__train": train,
        "loss__name": "mf_contrastive",
        "loss__distance": distance,
        "train__precision": "fp32",
        "data__cache": tmp_path / "cache",
    }
    run(**changes)
    made = prepared(stripes, **changes)
    embeddings = made.experiment.embed_training(made.model, precision=made.stepper.precision)
    labels = made.experiment.train_labels()
    for c in range(made.experiment.num_classes):
        own = [embeddings[n] for n in range(len(labels)) if labels[n] == c]
        mean = sum(own) / len(own)
        if distance == "cosine":  # the direction counts, the length is that of random fields
            mean = mean / mean.norm() * math.sqrt(len(mean))
        torch.testing.assert_close(started[0][c], mean, rtol=1e-4, atol=1e-5)
    for before, after in pairwise(started):
        assert not torch.equal(before, after)  # they are not set again


# What others make of such a run


def test_a_frozen_run_is_indexed_and_exported_as_any_other(frozen, stripes, tmp_path):
    folder = frozen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        build_index(folder, stripes, tmp_path / "index", device="cpu", quiet=True)
    file = tmp_path / "network.safetensors"
    export_run(folder, file)
    ours, theirs = network_of_run(folder, "cpu"), network_of_file(file, "cpu")
    assert theirs.fingerprint == ours.fingerprint
    assert "train" not in theirs.facts["backbone"]
    assert theirs.is_model_of(ours.manifest_facts("model"))
    pixels = [np.full((40, 40, 3), value, dtype=np.uint8) for value in (20, 220)]
    np.testing.assert_array_equal(ours.embed_pixels(pixels), theirs.embed_pixels(pixels))
