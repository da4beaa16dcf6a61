"""MFCWMS: this package's loss against the dense form of its formula, forward + backward.

The rival is the equation as it is printed: an exponential for every sample and class, class
averages as a C x C matrix, a logarithm of its symmetrised whole. It is right (the benchmark checks
that both give the same value and gradients) and it is what one writes first.

Every measurement has a process of its own. Time: the median of several steps after a warm-up. Extra
memory: what one step needs at its peak beyond inputs, fields and library, read from the largest
resident size on the CPU (with malloc told to give freed blocks back at once) and from torch's own
count on CUDA.

    python benchmarks/bench_multi_similarity.py                  # the size of SOP, on the CPU
    python benchmarks/bench_multi_similarity.py --device cuda
    python benchmarks/bench_multi_similarity.py --smoke          # a few seconds, for the tests
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from record import extra_mib, keep, medians, options_of
from torch import Tensor

from weiss import MeanFieldClassWiseMultiSimilarityLoss

ALPHA, BETA, DELTA = 0.01, 80.0, 0.2
CONTENDERS = ("weiss", "dense")


def dense_mfcwms(embeddings: Tensor, labels: Tensor, fields: Tensor) -> Tensor:
    """The formula of MFCWMS with all C x C pairs of classes written out; lambda = 0."""
    num_classes = len(fields)
    unit_embeddings = torch.nn.functional.normalize(embeddings)
    dist_BC = 1 - unit_embeddings @ torch.nn.functional.normalize(fields).T
    hot_BC = torch.nn.functional.one_hot(labels, num_classes).to(dist_BC.dtype)
    count_C = hot_BC.sum(0)
    present_C = count_C > 0
    weight_C = torch.where(present_C, 1 / count_C.clamp_min(1), 0.0)
    pull_C = (torch.exp(ALPHA * (dist_BC - DELTA)) * hot_BC).sum(0) * weight_C
    attraction = torch.log(1 + pull_C)[present_C].sum() / ALPHA
    push_CC = (hot_BC.T @ torch.exp(-BETA * (dist_BC - DELTA))) * weight_C[:, None]
    same_CC = torch.eye(num_classes, dtype=torch.bool, device=fields.device)
    pair_CC = torch.log(1 + push_CC + push_CC.T).masked_fill(same_CC, 0.0)
    return (attraction + pair_CC.sum() / (2 * BETA)) / present_C.sum()


def make_step(
    contender: str, batch: int, num_classes: int, size: int, device: str
) -> Callable[[], list[Tensor]]:
    """Return a function that does one forward + backward pass: value and both gradients."""
    torch.manual_seed(0)
    embeddings = torch.randn(batch, size).to(device).requires_grad_()
    labels = torch.randint(num_classes, (batch,)).to(device)
    loss = MeanFieldClassWiseMultiSimilarityLoss(num_classes, size, ALPHA, BETA, DELTA).to(device)

    def step() -> list[Tensor]:
        if contender == "weiss":
            value = loss(embeddings, labels)
        else:
            value = dense_mfcwms(embeddings, labels, loss.fields)
        return [value, *torch.autograd.grad(value, [embeddings, loss.fields])]

    return step


def measure(what: str, step: Callable[[], list[Tensor]], device: str, repeats: int) -> float:
    """Return the median seconds of a step, the MiB it needs at its peak, or a checksum of it."""
    if what == "checksum":
        value, *gradients = step()
        return value.item() + sum(gradient.norm().item() for gradient in gradients)
    if what == "memory":
        return extra_mib(step, device)
    return medians({what: step}, repeats, device)[what]


def in_own_process(what: str, contender: str, sizes: list[int], device: str) -> float:
    """Measure one thing in a fresh process."""
    words = [what, contender, *map(str, sizes), device]
    environment = dict(os.environ)
    if what == "memory":
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    command = [sys.executable, __file__, "--measure", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout)


def main() -> None:
    """Compare, print the table, and keep the result."""
    parser = options_of(__doc__)
    parser.add_argument("--measure", nargs=7, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, contender, *numbers, device = arguments.measure
        batch, num_classes, size, repeats = (int(number) for number in numbers)
        make_step(contender, 4, 8, 4, device)()  # loads the library's kernels
        step = make_step(contender, batch, num_classes, size, device)
        print(measure(what, step, device, repeats))
        return

    sizes = [16, 300, 32, 2] if arguments.smoke else [180, 11318, 512, 10]
    found = {
        (what, contender): in_own_process(what, contender, sizes, arguments.device)
        for what in ("checksum", "time", "memory")
        for contender in CONTENDERS
    }
    if abs(found["checksum", "weiss"] / found["checksum", "dense"] - 1) > 1e-5:
        raise SystemExit("the contenders disagree on the value or the gradients")
    faster = found["time", "dense"] / found["time", "weiss"]
    leaner = found["memory", "dense"] / max(found["memory", "weiss"], 1.0)
    print("MFCWMS forward + backward, batch {}, {} classes, {} dimensions".format(*sizes))
    for contender in CONTENDERS:
        seconds, extra = found["time", contender], found["memory", contender]
        print(f"  {contender:>6}: {1e3 * seconds:.2f} ms, {extra:.0f} MiB extra")
    print(f"  {faster:.1f} times faster, {leaner:.1f} times less extra memory")
    names = ("batch", "num_classes", "embedding_size", "steps")
    rows = [
        {
            "contender": contender,
            "time_over_weiss": round(found["time", contender] / found["time", "weiss"], 2),
            "memory_over_weiss": round(
                found["memory", contender] / max(found["memory", "weiss"], 1.0), 2
            ),
            "seconds": round(found["time", contender], 6),
            "extra_mib": round(found["memory", contender], 1),
            **dict(zip(names, sizes, strict=True)),
        }
        for contender in CONTENDERS
    ]
    keep(arguments, "multi_similarity", rows, arguments.device)


if __name__ == "__main__":
    main()
