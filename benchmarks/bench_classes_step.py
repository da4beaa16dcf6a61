"""A whole training step with a million classes: which share do the loss and its optimiser take?

ResNet-50 at the trainer's settings (frozen normalisation folded, bfloat16, channels last, network
passes replayed as CUDA graphs), batch 512, random images that are on the device, a mean-field loss
with vectors as they are after training (`bench_classes.lifelike` spreads the fields), AdamW for the
network and the fields. Times are CUDA events inside the same steps: network
forward | loss, forward and backward | network backward | network's optimiser | fields' optimiser.
Median of the steps after a warm-up.

    python benchmarks/bench_classes_step.py            # needs a GPU with some 30 GiB
    python benchmarks/bench_classes_step.py --smoke    # CPU, tiny, keeps nothing
"""

import argparse
import gc
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from bench_classes import lifelike
from bench_step import make_network
from record import keep, options_of

import weiss
from weiss._base.devices import autocast
from weiss._base.processes import Processes
from weiss.training.graphs import can_be_captured, captured

WAYS = (("float32", "off"), ("bfloat16", "off"), ("float32", "on"))
"""Precision of the loss's products; whether it skips far pairs (a hinge can)."""
PHASES = ("network forward", "loss", "network backward", "network's optimiser", "fields' optimiser")


def mark(marks: list[Any]) -> None:
    """Note the moment: of the GPU, or of the clock."""
    if torch.cuda.is_available():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)
    else:
        marks.append(time.perf_counter())


def between(marks: list[Any]) -> list[float]:
    """Return the milliseconds between moments."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(marks)]
    return [1e3 * (b - a) for a, b in pairwise(marks)]


def measure(
    loss_name: str, matmul_dtype: str, skip: str, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the median milliseconds of each phase of a step."""
    device = torch.device("cpu" if arguments.smoke else "cuda")
    precise = "fp32" if arguments.smoke else "bf16"
    recipe, model = make_network(arguments, device, precision=precise)
    samples, fields, labels = lifelike(
        arguments.batch, arguments.classes, 512, loss_name, str(device)
    )
    with torch.device("meta"):
        options: dict[str, Any] = {"check": False, "matmul_dtype": matmul_dtype, "skip": skip}
        loss = weiss.make_loss(loss_name, arguments.classes, 512, **options)
    loss.fields = torch.nn.Parameter(fields)
    precision = autocast(recipe.train.precision, device)
    forward: Any = model
    if can_be_captured(model, recipe, Processes(), device):
        forward = captured(model, recipe, precision, device)
    network = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not arguments.smoke)
    of_fields = torch.optim.AdamW([loss.fields], lr=1e-6, fused=not arguments.smoke)
    shape = (arguments.batch, arguments.size, arguments.size, 3)
    images = 255 * torch.rand(shape, device=device).permute(0, 3, 1, 2)
    times: list[list[float]] = []
    for _ in range(arguments.steps):
        marks: list[Any] = []
        network.zero_grad(set_to_none=True)
        of_fields.zero_grad(set_to_none=True)
        mark(marks)
        with precision():
            embeddings = forward(images)
        mark(marks)
        # An untrained network says nothing of trained fields: the samples stand in for its output.
        given = samples.detach().requires_grad_()
        loss(given, labels).backward()
        mark(marks)
        embeddings.backward(given.grad.to(embeddings.dtype))
        mark(marks)
        network.step()
        mark(marks)
        of_fields.step()
        mark(marks)
        times.append(between(marks))
    medians = [
        statistics.median(column) for column in zip(*times[arguments.steps // 5 :], strict=True)
    ]
    return dict(zip(PHASES, medians, strict=True))


def main() -> None:
    """Measure, print, keep."""
    parser = options_of(__doc__, device=False)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--backbone", default="resnet50_v1")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.batch, arguments.classes, arguments.steps = 4, 300, 2
        arguments.size, arguments.backbone = 64, "resnet18"
    torch.set_float32_matmul_precision("high")
    rows = []
    for loss_name in ("mf_contrastive", "mf_cwms"):
        for matmul_dtype, skip in WAYS:
            is_tried = not arguments.smoke or matmul_dtype == "float32"
            if not is_tried or (skip == "on" and loss_name == "mf_cwms"):
                continue
            found = measure(loss_name, matmul_dtype, skip, arguments)
            ours = found["loss"] + found["fields' optimiser"]
            share = ours / sum(found.values())
            total = sum(found.values())
            precision = "tf32" if matmul_dtype == "float32" else matmul_dtype
            pairs = "near pairs" if skip == "on" else "all pairs"
            print(f"{loss_name} [{precision}], {pairs}: {100 * share:.1f} % of {total:.1f} ms")
            print("  " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
            row: dict[str, Any] = {"loss": loss_name, "products": precision, "pairs": pairs}
            row |= {"share": round(share, 4)}
            row |= {f"{name} ms": round(value, 3) for name, value in found.items()}
            row |= {"batch": arguments.batch, "num_classes": arguments.classes}
            rows.append(row)
            gc.collect()
            torch.cuda.empty_cache()
    keep(arguments, "classes-step", rows, "cpu" if arguments.smoke else "cuda")


if __name__ == "__main__":
    main()
