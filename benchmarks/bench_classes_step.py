"""A whole training step with a million classes: which share do the loss and its optimiser take?

ResNet-50 at the trainer's settings (frozen normalisation folded, bfloat16, channels last, network
passes replayed as CUDA graphs), batch 512, random images that are on the device, a mean-field loss
with vectors as they are after training (`bench_classes.lifelike` spreads the fields), AdamW for the
network. The fields are moved by torch's fused AdamW, or by `TouchedRowsAdamW`. Times are CUDA
events inside the same steps: network forward | loss, forward and backward | network backward |
network's optimiser | fields' optimiser. Median of the steps after a warm-up.

    python benchmarks/bench_classes_step.py            # needs a GPU with some 30 GiB
"""

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

import torch
from bench_classes import lifelike
from record import RESULTS, hardware, keep

import weiss
from weiss.backbones import make_backbone
from weiss.config import recipe_from
from weiss.parallel import Processes
from weiss.touched_rows import TouchedRowsAdamW
from weiss.training.graphs import can_be_recorded, recorded
from weiss.training.stepping import autocast

PHASES = ("network forward", "loss", "network backward", "network's optimiser", "fields' optimiser")


def measure(
    loss_name: str, products: str, touched: bool, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the median milliseconds of each phase of a step."""
    device = torch.device("cuda")
    changes = {
        "backbone.name": "resnet50_v1",
        "backbone.weights": "none",
        "train.batch_size": arguments.batch,
        "train.precision": "bf16",
        "augment.size": 224,
    }
    recipe = recipe_from("cub_resnet50", [f"{key}={value}" for key, value in changes.items()])
    torch.manual_seed(0)
    model = make_backbone(
        "resnet50_v1", embedding_size=512, weights="scratch", freeze_bn="statistics"
    )
    model = model.to(device).to(memory_format=torch.channels_last).train()
    samples, fields, labels = lifelike(arguments.batch, arguments.classes, 512, loss_name, "cuda")
    with torch.device("meta"):
        loss = weiss.make_loss(loss_name, arguments.classes, 512, check=False, products=products)
    loss.fields = torch.nn.Parameter(fields)
    precision = autocast("bf16", device)
    forward: Any = model
    if can_be_recorded(model, recipe, Processes(), device):
        forward = recorded(model, recipe, precision, device)
    network = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if touched:
        of_fields: torch.optim.Optimizer = TouchedRowsAdamW([loss.fields], lr=1e-6)
    else:
        of_fields = torch.optim.AdamW([loss.fields], lr=1e-6, fused=True)
    shape = (arguments.batch, 224, 224, 3)
    images = 255 * torch.rand(shape, device=device).permute(0, 3, 1, 2)
    times: list[list[float]] = []
    for _ in range(arguments.steps):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        network.zero_grad(set_to_none=True)
        of_fields.zero_grad(set_to_none=True)
        events[0].record()
        with precision():
            embeddings = forward(images)
        events[1].record()
        # An untrained network says nothing of trained fields: the samples stand in for its output.
        given = samples.detach().requires_grad_()
        loss(given, labels).backward()
        events[2].record()
        embeddings.backward(given.grad.to(embeddings.dtype))
        events[3].record()
        network.step()
        events[4].record()
        of_fields.step()
        events[5].record()
        torch.cuda.synchronize()
        times.append([a.elapsed_time(b) for a, b in itertools.pairwise(events)])
    medians = [statistics.median(column) for column in zip(*times[3:], strict=True)]
    return dict(zip(PHASES, medians, strict=True))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rows = []
    for loss_name in ("mf_contrastive", "mf_cwms"):
        for products, touched in (("float32", False), ("float32", True), ("bfloat16", False)):
            found = measure(loss_name, products, touched, arguments)
            ours = found["loss"] + found["fields' optimiser"]
            share = ours / sum(found.values())
            optimiser = "TouchedRowsAdamW" if touched else "torch.optim.AdamW"
            total = sum(found.values())
            precision = "tf32" if products == "float32" else products
            print(f"{loss_name} [{precision}], {optimiser}: {100 * share:.1f} % of {total:.1f} ms")
            print("  " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
            row: dict[str, Any] = {"loss": loss_name, "products": precision}
            row |= {"fields_optimiser": optimiser, "share": round(share, 4)}
            row |= {f"{name} ms": round(value, 3) for name, value in found.items()}
            row |= {"batch": arguments.batch, "num_classes": arguments.classes}
            rows.append(row)
            torch.cuda.empty_cache()
    print(hardware("cuda"))
    keep(arguments.out, "classes-step", "cuda", rows)


if __name__ == "__main__":
    main()
