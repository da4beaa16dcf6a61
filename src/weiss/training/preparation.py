"""Make everything that a run needs from its recipe: data, network, loss, optimiser, processes."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.nn.modules.batchnorm import _BatchNorm

from weiss._base.devices import is_cpu, refuse_absent_device
from weiss._base.parent import end_with
from weiss._base.processes import Processes, is_distributed
from weiss.backbones import Embedder
from weiss.data import Table
from weiss.data.sources import Vectors
from weiss.losses import Baseline, Matryoshka, MeanFieldLoss, PairLoss
from weiss.losses.self_consistency import ClassMeans
from weiss.losses.shards import shard_classes
from weiss.runs import Recipe, build_backbone, build_loss
from weiss.runs.completion import complete
from weiss.runs.experiment import Experiment, open_data, open_pipeline
from weiss.training.state import Parts
from weiss.training.step import Stepper, make_optimizer


@dataclass(frozen=True)
class Prepared:
    """What a run consists of; its recipe is complete."""

    recipe: Recipe
    device: torch.device
    experiment: Experiment
    model: Embedder
    loss: nn.Module
    stepper: Stepper
    means: ClassMeans
    parts: Parts


def prepare(
    recipe: Recipe, device: torch.device, processes: Processes, data: Table | None = None
) -> Prepared:
    """Make everything that a recipe asks for; each of several processes makes the same.

    A table is used in place of the data that the recipe names.
    """
    if recipe.train.device.startswith("cuda:"):
        device = torch.device(recipe.train.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # for code that asks for the current stream
    table = open_data(recipe, data)
    if not table.has("train"):
        raise ValueError(f"{table.name} must have items to train on; it has {table.sizes()}.")
    # One seed for the network and the fields; the order of images depends on it too.
    torch.manual_seed(recipe.seed)
    model = _make_model(recipe, table).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the peak of this run, not of those before it
    pipeline = open_pipeline(recipe, table, model.input, device, processes)
    recipe = complete(recipe, pipeline.table, model, device, processes)
    experiment = Experiment(recipe, pipeline, processes)
    loss = _make_loss(recipe, experiment, model.embedding_size).to(device)
    processes.agree([*model.state_dict().values(), *loss.state_dict().values()])
    if recipe.train.shard_classes and processes.size > 1 and isinstance(loss, MeanFieldLoss):
        shard_classes(loss, processes.group)  # drawn whole: the same fields as with one process
    sizes = recipe.backbone.dimensions
    _try_once(loss if sizes is None else Matryoshka(loss, sizes), experiment)
    model = _laid_out(model, recipe, device, processes)
    optimizer = make_optimizer(recipe, model, loss)
    stepper = Stepper(recipe, model, loss, optimizer, processes, device)
    means = ClassMeans(experiment.num_classes, model.embedding_size, device)
    parts = Parts(model, loss, optimizer, stepper.scaler, means)
    return Prepared(recipe, device, experiment, model, loss, stepper, means, parts)


def _make_model(recipe: Recipe, table: Table) -> Embedder:
    section = recipe.as_dict()["backbone"]
    if section["name"] == "features":
        if not isinstance(table.source, Vectors):
            raise ValueError(
                f"backbone.name must be a network for images, since {table.name} holds images; got "
                "'features'."
            )
        section.setdefault("num_features", int(table.source.vectors.shape[1]))
    return build_backbone(section)


def _laid_out(
    model: Embedder, recipe: Recipe, device: torch.device, processes: Processes
) -> Embedder:
    """Return a network with the memory layout and the batch normalisation of training."""
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.backbone.freeze_bn != "none" or processes.size == 1:
        return model
    left = synchronise_batch_norm(model) if device.type == "cuda" else _batch_norms(model)
    if left:
        kinds = ", ".join(sorted({type(module).__name__ for module in left}))
        warnings.warn(
            f"{kinds} cannot be synchronised on {device.type}: each of the {processes.size} "
            "processes normalises by its own part of the batch. Freeze batch normalisation "
            "(backbone.freeze_bn='statistics') for the results of one process.",
            stacklevel=3,
        )
    return model


def synchronise_batch_norm(model: nn.Module) -> list[nn.Module]:
    """Let batch normalisation use the batch of all processes; return the layers that cannot.

    Only plain layers are replaced: from a layer of another kind torch's own conversion would
    silently remove what it adds, for example an activation.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                alike = nn.SyncBatchNorm.convert_sync_batchnorm(child)  # type: ignore[no-untyped-call]
                setattr(parent, name, alike)
    return [m for m in _batch_norms(model) if not isinstance(m, nn.SyncBatchNorm)]


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _make_loss(recipe: Recipe, experiment: Experiment, embedding_size: int) -> nn.Module:
    section = recipe.as_dict()["loss"]
    loss = build_loss(section, experiment.num_classes, embedding_size)
    if isinstance(loss, (MeanFieldLoss, PairLoss, Baseline)):
        # Labels are right by construction; checking them would make a GPU wait each step.
        # Embeddings that are not finite make the loss so, which `LossWatch` notices.
        loss.check = section.get("check", experiment.table.is_multi_label)
    if recipe.fields.how != "joint" and isinstance(loss, MeanFieldLoss):
        loss.fields.requires_grad_(False)
    return loss


def _try_once(loss: nn.Module, experiment: Experiment) -> None:
    """Compute a mean-field loss once, so that it raises before the run what it refuses.

    Every process must call it, since they may share the classes.
    """
    own = loss.loss if isinstance(loss, Matryoshka) else loss
    if not isinstance(own, MeanFieldLoss):
        return
    with torch.no_grad():
        embeddings = own.fields.new_ones(1, own.fields.shape[-1])  # a shard may be empty
        labels = torch.zeros(1, dtype=torch.int64, device=embeddings.device)
        if experiment.table.is_multi_label:
            labels = one_hot(labels, experiment.num_classes)
        loss(embeddings, labels)


def make_accelerator(recipe: Recipe, folder: Path) -> tuple[Any, Processes]:
    """Return the accelerator, for the device and the trackers, and the processes of this launch."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.tracking import get_available_trackers

    refuse_absent_device(recipe.train.device, "train.device")
    wanted = list(recipe.track.with_)
    absent = set(wanted) - {str(getattr(t, "value", t)) for t in get_available_trackers()}
    if absent:
        raise ValueError(
            f"track.with must name trackers that are installed; {', '.join(sorted(absent))} "
            f"{'is' if len(absent) == 1 else 'are'} not. Install: pip install 'weiss[tracking]'"
        )
    if not is_distributed():
        # It keeps the device of the last run in this process; this run may use another.
        AcceleratorState._reset_state(reset_partial_state=True)
    # Without a GPU "auto" is the CPU, named so that processes find each other there.
    accelerator = Accelerator(
        cpu=is_cpu(recipe.train.device),
        mixed_precision="no",  # `Stepper` sets it, for the network and not for the loss
        log_with=wanted or None,
        project_dir=folder,
    )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())  # torchrun or accelerate launch, which may be killed
    launched, size = int(os.environ.get("WORLD_SIZE", "1")), int(accelerator.num_processes)
    if size != launched:
        raise RuntimeError(
            f"the {launched} processes of this launch must find each other; this one is in a group "
            f"of {size}. Start them with torchrun or accelerate launch, all for the same kind of "
            "device."
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))  # set by launchers
    return accelerator, Processes(int(accelerator.process_index), size, local)
