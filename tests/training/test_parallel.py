"""Several processes that share each batch compute what one would."""

import json
import shutil
import subprocess
import sys

import psutil
import pytest
import together
import torch
from tiny import begin, command, environment, tiny_recipe, wait_until, without_times

from weiss._base.processes import Processes
from weiss._base.tensor_files import read_tensors
from weiss.runs import Run, build_backbone
from weiss.runs.completion import complete
from weiss.runs.experiment import open_data
from weiss.training import evaluate_run, train
from weiss.training.preparation import synchronise_batch_norm

pytestmark = pytest.mark.dist

FROZEN = {"backbone__freeze_bn": "statistics"}
SHARDS = {"train__shard_classes": "true"}
IN_PARTS = {"train__accumulate": 2}
VARIANTS = {
    "fields": {},
    "pairs in parts": {"loss__name": "contrastive", "train__per_class": 2, **IN_PARTS},
    "proxies in parts": {"loss__name": "proxy_anchor", **IN_PARTS},
    "sgd": {"optim__name": "sgd", "optim__clip_norm": 0.05},
    "class means": {"fields__how": "class_mean"},
    "shards": {**SHARDS, "loss__reg_weight": 0.3},
    "shards in parts": {**SHARDS, **IN_PARTS, "loss__name": "mf_contrastive"},
}
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launch(launcher, *words):
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *map(str, words)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def launch_weiss(launcher, words):
    return launch(launcher, "-m", "weiss", *words)


@pytest.fixture(scope="module")
def launched(stripes, tmp_path_factory):
    """One launch of two processes: a run by the command line, then `together.main`."""
    folder = tmp_path_factory.mktemp("launched")
    cache = {"data__cache": str(folder / "cache")}
    # Different numbers of batches to embed, and more steps than between two agreements.
    changes = {**FROZEN, **cache, "train__epochs": 6, "evaluate__batch_size": 11}
    changes |= {"fields__how": "alternating", "evaluate__on": "held_out", "evaluate__folds": 3}
    changes |= {"optim__lr": 1e-3, "train__device": "auto", "train__batch_size": 8}
    variants = {name: {**FROZEN, **cache, **own} for name, own in VARIANTS.items()}
    orders = {
        "words": command(stripes, folder / "run", **changes),
        "data": str(stripes),
        "variants": variants,
        "store": str(folder / "store"),
        "found": str(folder / "found"),
    }
    (folder / "orders.json").write_text(json.dumps(orders))
    done = launch(TORCHRUN, together.__file__, folder / "orders.json")
    found = torch.load(folder / "found", weights_only=True)
    return done.stdout, folder / "run", changes, variants, found


def test_two_processes_take_the_steps_of_one(stripes, launched):
    *_, variants, found = launched
    for name, changes in variants.items():
        # One process, the whole batch at once.
        alone = {key: value for key, value in changes.items() if key != "train__accumulate"}
        one, two = together.steps(stripes, alone, Processes()), found[name]
        torch.testing.assert_close(two["losses"], one["losses"], rtol=1e-5, atol=1e-6)
        for kind in ("model", "loss"):
            assert one[kind].keys() == two[kind].keys()
            for key, value in one[kind].items():
                message = f"{name}: {key}"
                assert torch.allclose(two[kind][key], value, rtol=1e-5, atol=2e-5), message
        torch.testing.assert_close(two["embeddings"], one["embeddings"], rtol=0, atol=1e-4)
        for key, value in one["evaluation"].items():
            assert two["evaluation"][key] == pytest.approx(value, abs=0.03), f"{name}: {key}"
        # Before the first step the networks are the same, and so must the scores be.
        assert two["untrained"] == pytest.approx(one["untrained"], abs=1e-9), name


def test_torchrun_trains_one_run_and_only_the_main_process_prints(stripes, tmp_path, launched):
    said, folder, changes, *_ = launched
    whole = tmp_path / "whole"
    train(tiny_recipe(stripes, **changes), whole, quiet=True, pictures=False)
    for line in ("writing to", "epoch 1/6", "epoch 6/6", "in all. Look at"):
        assert said.count(line) == 1, said
    one, two = Run(whole).metrics(), Run(folder).metrics()
    assert len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b["lr"] == a["lr"]
        assert b["steps"] == a["steps"]
        assert b["order"]["residual"] == pytest.approx(a["order"]["residual"], abs=1e-3)
        for key, value in a["evaluation"].items():
            assert b["evaluation"][key] == pytest.approx(value, abs=0.05)
    assert Run(folder).recipe()["made_with"]["processes"] == 2
    names = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    pictures = {path.relative_to(folder) for path in (folder / "plots").glob("*")}
    assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} - pictures == names
    assert Run(folder).result()["test"].keys() == Run(whole).result()["test"].keys()


@pytest.mark.slow
def test_a_run_is_resumed_by_any_number_of_processes_that_share_its_classes(run, tmp_path, stripes):
    changes = {**FROZEN, "loss__name": "mf_contrastive", "data__cache": tmp_path / "cache"}
    changes |= {"train__shard_classes": "true", "optim__lr": 1e-3}
    whole = run("whole", **changes, train__epochs=8)
    # Six epochs have 18 steps, of which all processes save the sixteenth, and the last.
    often = {**changes, "train__checkpoint_seconds": 0.001}
    launch_weiss(TORCHRUN, command(stripes, tmp_path / "more", "--quiet", **often, train__epochs=6))
    tensors, _ = read_tensors(Run(tmp_path / "more").checkpoints.files()[-1])
    assert tensors["loss.fields"].shape == Run(tmp_path / "more").loss().fields.shape == (6, 16)
    run("more", resume=True, **changes, train__epochs=8)
    run("fewer", **{**changes, "train__shard_classes": "false"}, train__epochs=3)
    alone, _ = read_tensors(Run(tmp_path / "fewer").checkpoints.files()[-1])
    assert {k: v.shape for k, v in alone.items()} == {k: v.shape for k, v in tensors.items()}
    launch_weiss(
        TORCHRUN, command(stripes, tmp_path / "fewer", "--resume", **changes, train__epochs=8)
    )
    for name in ("more", "fewer"):
        assert Run(tmp_path / name).result()["epochs"] == 8
        for one, two in zip(Run(whole).metrics(), Run(tmp_path / name).metrics(), strict=True):
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
            assert two["steps"] == one["steps"]
            for key, value in one["order"].items():
                assert two["order"][key] == pytest.approx(value, abs=2e-3), key
            for key, value in one["evaluation"].items():
                assert two["evaluation"][key] == pytest.approx(value, abs=0.05), key
        fields = Run(tmp_path / name).loss().fields
        if Run(tmp_path / name).result()["epoch"] == Run(whole).result()["epoch"]:
            torch.testing.assert_close(fields, Run(whole).loss().fields, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_processes_share_the_features_of_a_frozen_network(run, tmp_path, stripes):
    changes = {"backbone__train": "frozen", "augment__views": 2, "train__precision": "fp32"}
    one = run("one", **changes, data__cache=tmp_path / "cache")
    launch_weiss(
        TORCHRUN, command(stripes, tmp_path / "two", **changes, data__cache=tmp_path / "c")
    )
    tensors, others = (read_tensors(f / "model.safetensors")[0] for f in (one, tmp_path / "two"))
    for name, value in tensors.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=1e-4)
    kept = [read_tensors(file)[0] for file in (tmp_path / "c" / "features").rglob("*.safetensors")]
    # Each process has computed its half: of the centre of 60 images, of two views of 36.
    assert sorted(len(each["digests"]) for each in kept) == [18, 18, 18, 18, 30, 30]


@pytest.mark.slow
def test_accelerate_launch_trains_the_same_run(run, tmp_path, stripes):
    # On CPUs it starts one process, or several by MPI; on GPUs it does what torchrun does.
    changes = {"train__epochs": 2}
    whole = run("whole", **changes)
    folder = tmp_path / "launched"
    accelerate = ("accelerate.commands.launch", "--cpu", "--num_processes", "1")
    accelerate = (*accelerate, "--num_machines", "1", "--dynamo_backend", "no")
    launch_weiss(accelerate, command(stripes, folder, "--quiet", **changes))
    one, two = ([without_times(n) for n in Run(each).metrics()] for each in (folder, whole))
    assert one == two


def test_a_batch_must_be_shared_evenly(stripes):
    recipe = tiny_recipe(stripes)
    table, model = open_data(recipe), build_backbone(recipe.as_dict()["backbone"])

    def size(number, **changes):
        asked, processes = tiny_recipe(stripes, **changes), Processes(0, number, number)
        return complete(asked, table, model, together.CPU, processes).train.batch_size

    law = "train.batch_size must be a multiple of 5, to be shared by 5 processes"
    with pytest.raises(ValueError, match=law):
        size(5)
    assert size(2, train__batch_size="auto", train__accumulate=2) == 8
    assert size(3, train__batch_size="auto", train__accumulate=2) == 6


@pytest.mark.slow
def test_a_network_with_statistics_of_its_own_is_measured_as_it_is_saved(tmp_path, stripes):
    """Batch normalisation that is not frozen differs between processes on a CPU."""
    changes = {"train__epochs": 2, "train__batch_size": 12, "data__cache": tmp_path / "cache"}
    changes |= {"train__warmup_epochs": 0}
    folder = tmp_path / "together"
    done = launch_weiss(TORCHRUN, command(stripes, folder, **changes))
    assert "BatchNorm2d cannot be synchronised on cpu" in " ".join(done.stderr.split())
    again = evaluate_run(folder, device="cpu").summary()
    assert again["map_at_r"] == pytest.approx(Run(folder).result()["map_at_r"], abs=1e-6)
    # And it goes on, from the state before the newest where that is damaged.
    resumed = {**changes, "train__epochs": 4, "train__checkpoint_seconds": 0}
    launch_weiss(TORCHRUN, command(stripes, folder, "--resume", **resumed))
    damaged = Run(folder).checkpoints.files()[-1]
    shutil.copy(damaged, damaged.with_name("000000099.safetensors"))
    damaged.with_name("000000099.safetensors").write_bytes(damaged.read_bytes()[:-20])
    done = launch_weiss(
        TORCHRUN, command(stripes, folder, "--resume", **{**resumed, "train__epochs": 5})
    )
    assert "is damaged" in done.stderr
    assert Run(folder).result()["epochs"] == 5


def test_only_plain_layers_are_synchronised():
    class WithActivation(torch.nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), WithActivation(3), torch.nn.Linear(2, 2))
    (left,) = synchronise_batch_norm(model)
    assert isinstance(left, WithActivation)
    assert isinstance(model[0], torch.nn.SyncBatchNorm)
    assert model[1] is left


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "seeds"])
def test_processes_do_not_outlive_what_started_them(stripes, tmp_path, launcher):
    """Killed, it can say nothing; suspended, they notice nothing themselves."""
    changes = {**FROZEN, "train__epochs": 5000, "train__checkpoint_seconds": 0}
    options = ["--seeds", "2", "--workers", "2"] if launcher == "seeds" else []
    words = ["-m", "weiss", *command(stripes, tmp_path / "out", "--quiet", *options, **changes)]
    by = ["-m", *TORCHRUN] if launcher == "torchrun" else []
    process = begin([sys.executable, *by, *words])
    wanted = 2 if launcher == "seeds" else 1
    wait_until(lambda: len(list((tmp_path / "out").rglob("0*.safetensors"))) >= wanted)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    for child in children:
        child.suspend()
    process.kill()
    assert psutil.wait_procs(children, timeout=60)[1] == []
