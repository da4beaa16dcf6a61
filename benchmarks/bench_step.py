"""A training step of a frozen-normalisation network: layer by layer, folded, folded and recorded.

The step is the trainer's: ResNet-50, MFCWMS over 100 classes, AdamW, clipping, on a batch that is
on the device. "layer by layer" is torch's own layers one after the other; "folded" has
normalisation in the convolutions (`weiss.backbones.layers`); "folded, recorded" replays that as a
CUDA graph (`weiss.training.graphs`), which is what the trainer does. Rounds of the contenders
alternate; a round is synchronised, and the median round counts. On a GPU a profile adds how long
the kernels take and of which kinds they are, without the gaps between them.

    python benchmarks/bench_step.py --device cuda [--compile]
    python benchmarks/bench_step.py --smoke                       # CPU, small, keeps nothing
"""

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from record import keep, medians, options_of

from weiss._base.devices import resolve_precision
from weiss._base.processes import Processes
from weiss.backbones import Embedder, make_backbone
from weiss.losses import make_loss
from weiss.runs import Recipe, recipe_from
from weiss.training.step import Stepper, make_optimizer

NUM_CLASSES = 100
PLAIN = "layer by layer"
KINDS = {
    "normalisation": ("batch_norm",),
    "pooling": ("pool",),
    "sums": ("reduce",),
    "products and convolutions": ("gemm", "fprop", "dgrad", "wgrad", "cudnn", "conv", "nvjet"),
    "element by element": ("elementwise", "triton", "copy", "memcpy", "memset", "multi_tensor"),
}
"""Words in the names of kernels; the first kind that fits counts."""


def make_network(
    arguments: argparse.Namespace, device: torch.device, **of_training: str
) -> tuple[Recipe, Embedder]:
    """Return the recipe of a step, with further settings of training, and its network."""
    changes = {
        "backbone.name": arguments.backbone,
        "backbone.weights": "none",
        "train.batch_size": arguments.batch,
        "augment.size": arguments.size,
    }
    changes |= {f"train.{key}": value for key, value in of_training.items()}
    recipe = recipe_from("cub_resnet50", [f"{key}={value}" for key, value in changes.items()])
    torch.manual_seed(0)
    model = make_backbone(
        arguments.backbone, embedding_size=512, weights="scratch", freeze_bn="statistics"
    )
    return recipe, model.to(device).to(memory_format=torch.channels_last).train()


def make_stepper(contender: str, arguments: argparse.Namespace) -> Stepper:
    device = torch.device(arguments.device)
    recipe, model = make_network(
        arguments,
        device,
        graphs=str("recorded" in contender).lower(),
        compile=str(contender == "compiled").lower(),
        precision=resolve_precision("auto", device),
    )
    model.trunk.folds = "folded" in contender
    loss = make_loss("mf_cwms", num_classes=NUM_CLASSES, embedding_size=512, check=False).to(device)
    optimizer = make_optimizer(recipe, model, loss)
    stepper = Stepper(recipe, model, loss, optimizer, Processes(), device)
    stepper.set_phase(warming_up=False)
    return stepper


def make_batch(arguments: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    shape = (arguments.batch, arguments.size, arguments.size, 3)
    images = 255 * torch.rand(shape, device=arguments.device).permute(0, 3, 1, 2)
    return images, torch.randint(NUM_CLASSES, (arguments.batch,), device=arguments.device)


def measure(
    steppers: dict[str, Stepper], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step and of an evaluation's batch for each contender."""
    images, labels = make_batch(arguments)

    def evaluate(stepper: Stepper) -> None:
        with torch.no_grad(), stepper.precision():
            stepper.model(images)

    acts: dict[str, Callable[[], Any]] = {}
    for name, stepper in steppers.items():
        acts[f"step {name}"] = partial(stepper, images, labels)
        acts[f"evaluation {name}"] = partial(evaluate, stepper)
    rounds, device = arguments.rounds, arguments.device
    found = medians(acts, rounds, device, steps=arguments.steps, untimed=1)
    return {
        name: {what: found[f"{what} {name}"] for what in ("step", "evaluation")}
        for name in steppers
    }


def kernel_seconds(stepper: Stepper, arguments: argparse.Namespace) -> dict[str, float]:
    """Return how long the kernels of a step take, by kind."""
    from torch.profiler import ProfilerActivity, profile

    images, labels = make_batch(arguments)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            stepper(images, labels)
        torch.cuda.synchronize()
    seconds: Counter[str] = Counter()
    for event in profiler.key_averages():
        name = event.key.lower()
        kind = next((k for k, words in KINDS.items() if any(w in name for w in words)), "rest")
        seconds[kind] += event.self_device_time_total / 3e6
    return dict(seconds.most_common())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=20, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile competes too")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.backbone, arguments.batch, arguments.size = "resnet18", 4, 64
        arguments.steps, arguments.rounds = 1, 1
    contenders = [PLAIN, "folded", "folded, recorded"]
    contenders += ["compiled"] if arguments.compile else []
    steppers = {name: make_stepper(name, arguments) for name in contenders}
    found = measure(steppers, arguments)
    rows: list[dict[str, Any]] = []
    for name, seconds in found.items():
        row: dict[str, Any] = {
            "contender": name,
            "speed_of_layer_by_layer": round(found[PLAIN]["step"] / seconds["step"], 3),
            "evaluation_speed": round(found[PLAIN]["evaluation"] / seconds["evaluation"], 3),
            "seconds": round(seconds["step"], 5),
            "batch": arguments.batch,
            "size": arguments.size,
            "backbone": arguments.backbone,
        }
        if arguments.device == "cuda":
            kernels = kernel_seconds(steppers[name], arguments)
            row["kernel_seconds"] = round(sum(kernels.values()), 5)
            row["kernels"] = "; ".join(f"{k} {v:.5f}" for k, v in kernels.items())
        rows.append(row)
    for row in rows:
        print(
            f"{row['contender']}: {row['speed_of_layer_by_layer']:.2f} times the speed of {PLAIN}"
        )
        print(f"  {row.get('kernels', '')}", f"evaluation {row['evaluation_speed']:.2f}")
    keep(arguments, "step", rows, arguments.device)


if __name__ == "__main__":
    main()
