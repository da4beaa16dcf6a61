"""Retrieval evaluation: `weiss.retrieval_metrics` against its rivals on the same embeddings.

Tasks, with the sizes of real test sets (embeddings are synthetic: class centres plus noise):

    sop       60,502 x 512 among themselves, 11,316 classes    (Stanford Online Products)
    inshop    14,218 queries against 12,612 items, 3,985 classes, 512 dimensions    (In-Shop)
    million   1,000,000 x 256 among themselves, 20,000 classes of 50
    cub       5,924 x 512 among themselves, 100 classes    (CUB, as after each epoch of training)

Rivals: `full`, this package without screening in low precision; `plain`, a blocked product +
torch.topk written out below; `faiss`, an exact flat index with the same metrics; `pml`,
pytorch-metric-learning's AccuracyCalculator with k="max_bin_count". All compute P@1, R-precision
and MAP@R, and the benchmark stops if they disagree. With `full` it counts, for at most 65,536
queries, those whose neighbours or their order differ (`different`). `in_full` counts those that low
precision could not decide.

On the CPU each contender runs in a process of its own, and extra memory is the largest resident
size beyond that before its call. The contenders take turns, so that whatever else the machine does
happens to all of them. On CUDA all share one process, are warmed up, and are timed to
synchronisation. Time is the median of the repeats.

    python benchmarks/bench_retrieval.py --task sop --rivals plain,faiss,pml --repeats 3
    python benchmarks/bench_retrieval.py --task inshop,sop,million --device cuda --rivals full,plain
    python benchmarks/bench_retrieval.py --smoke
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from record import extra_mib, keep, options_of, wait_for
from torch import Tensor

from weiss import evaluate_retrieval
from weiss.evaluation import metrics, retrieval
from weiss.evaluation.neighbours import default_budget, nearest_neighbours

Batch = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
SIZES = ("queries", "items", "classes", "dimensions")
TASKS = {  # 0 items: the queries themselves
    "sop": (60502, 0, 11316, 512),
    "inshop": (14218, 12612, 3985, 512),
    "million": (1_000_000, 0, 20_000, 256),
    "cub": (5924, 0, 100, 512),
    "smoke": (400, 0, 60, 16),
}
NAMES = ("precision_at_1", "r_precision", "map_at_r")
COMPARED = 65536
AGREEMENT = 1e-4
"""Contenders sum in different orders: a few near ties among thousands may fall either way."""


def make_batch(task: str, device: str) -> Batch:
    """Return query, its labels, gallery and its labels."""
    queries, items, classes, size = TASKS[task]
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    centres = draw(classes, size)

    def embed(labels: Tensor) -> Tensor:
        return torch.nn.functional.normalize(centres[labels] + 2.0 * draw(len(labels), size))

    if task == "million":
        labels = torch.arange(queries, device=device) % classes
    else:
        labels = torch.randint(classes, (queries,), generator=generator, device=device)
    if not items:
        return embed(labels), labels, None, None
    gallery_labels = torch.randint(classes, (items,), generator=generator, device=device)
    return embed(labels), labels, embed(gallery_labels), gallery_labels


def weiss(batch: Batch) -> dict[str, float]:
    """This package, as a user calls it."""
    found = evaluate_retrieval(*batch)
    summary = found.summary()
    return {name: float(summary[name]) for name in NAMES} | {"in_full": found.queries_in_full}


def full(batch: Batch) -> dict[str, float]:
    """This package, every product in full precision."""
    searched = partial(nearest_neighbours, screens=False)
    with mock.patch.object(retrieval, "nearest_neighbours", searched):
        return weiss(batch)


def count_different(batch: Batch) -> int:
    """Return for how many queries screening changes the nearest neighbours or their order."""
    query, labels, gallery, gallery_labels = batch
    items, item_labels = (query, labels) if gallery is None else (gallery, gallery_labels)
    assert item_labels is not None
    rows = torch.linspace(0, len(query) - 1, min(len(query), COMPARED)).long().numpy()
    needs = _relevant(labels, item_labels, gallery is None).clamp_min(8).cpu().numpy()
    found = []
    for screens in (True, False):
        blocks = nearest_neighbours(
            query, items, needs, distance="cosine", leave_one_out=gallery is None,
            device=query.device, budget=default_budget(query.device), rows=rows, screens=screens,
        )  # fmt: skip
        of_row = {}
        for block, indices in blocks:
            for row, index in zip(block.tolist(), indices.cpu(), strict=True):
                of_row[row] = index[: needs[row]]  # the block may need more than this query
        found.append(of_row)
    return sum(not torch.equal(index, found[1][row]) for row, index in found[0].items())


def plain(batch: Batch) -> dict[str, float]:
    """Blocks of a product, torch.topk, and the metrics: what one writes by hand."""
    query, labels, gallery, gallery_labels = batch
    items, item_labels = (query, labels) if gallery is None else (gallery, gallery_labels)
    assert item_labels is not None
    relevant = _relevant(labels, item_labels, gallery is None)
    deepest, height = int(relevant.max()), 2048
    if len(items) > 500_000:
        height = 512
    neighbours = []
    for start in range(0, len(query), height):
        scores = query[start : start + height] @ items.T
        if gallery is None:
            here = torch.arange(len(scores), device=query.device)
            scores[here, here + start] = -torch.inf
        neighbours.append(scores.topk(deepest, dim=1).indices)
    return _summary(torch.cat(neighbours), labels, item_labels, relevant)


def faiss(batch: Batch) -> dict[str, float]:
    """An exact flat index of inner products."""
    import faiss as library

    query, labels, gallery, gallery_labels = batch
    items, item_labels = (query, labels) if gallery is None else (gallery, gallery_labels)
    assert item_labels is not None
    relevant = _relevant(labels, item_labels, gallery is None)
    deepest = int(relevant.max()) + (gallery is None)
    index = library.IndexFlatIP(items.shape[1])
    index.add(items.numpy())
    neighbours = torch.from_numpy(index.search(query.numpy(), deepest)[1])
    if gallery is None:  # its results hold the query itself, somewhere
        itself = torch.arange(len(query))[:, None]
        order = (neighbours == itself).int().argsort(dim=1, stable=True)
        neighbours = neighbours.gather(1, order)[:, : deepest - 1]
    return _summary(neighbours, labels, item_labels, relevant)


def pml(batch: Batch) -> dict[str, float]:
    """The calculator of pytorch-metric-learning."""
    with warnings.catch_warnings(action="ignore"):
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

        include = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
        calculator = AccuracyCalculator(include=include, k="max_bin_count")
        given = [part for part in batch if part is not None]
        found = calculator.get_accuracy(*given)
    return {name: float(found[theirs]) for name, theirs in zip(NAMES, include, strict=True)}


CONTENDERS: dict[str, Callable[[Batch], dict[str, float]]] = {
    "weiss": weiss,
    "full": full,
    "plain": plain,
    "faiss": faiss,
    "pml": pml,
}


def _relevant(labels: Tensor, item_labels: Tensor, itself: bool) -> Tensor:
    size = torch.bincount(item_labels, minlength=int(labels.max()) + 1)
    return size[labels] - int(itself)


def _summary(
    neighbours: Tensor, labels: Tensor, item_labels: Tensor, relevant: Tensor
) -> dict[str, float]:
    counts = relevant > 0
    hits, relevant = (item_labels[neighbours] == labels[:, None])[counts], relevant[counts]
    return {
        "precision_at_1": metrics.precision_at(hits, 1).mean().item(),
        "r_precision": metrics.r_precision(hits, relevant).mean().item(),
        "map_at_r": metrics.average_precision_at_r(hits, relevant).mean().item(),
    }


def measured(contender: str, batch: Batch, device: str, repeats: int) -> dict[str, Any]:
    """Return the median seconds, the extra memory, and what was found."""
    found, seconds = {}, []

    def act() -> None:
        for _ in range(repeats):
            start = time.perf_counter()
            found.update(CONTENDERS[contender](batch))
            wait_for(device)
            seconds.append(time.perf_counter() - start)

    extra = extra_mib(act, device)
    return {"seconds": statistics.median(seconds), "extra_mib": extra, "found": found}


def on_cpu(names: list[str], task: str, repeats: int) -> dict[str, dict[str, Any]]:
    """Measure contenders in turns, each time in a fresh process."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, own in found.items():
            command = [sys.executable, __file__, "--measure", name, "--task", task]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            own.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {
            "seconds": statistics.median(each["seconds"] for each in own),
            "extra_mib": max(each["extra_mib"] for each in own),
            "found": own[0]["found"],
        }
        for name, own in found.items()
    }


def measure_here(contender: str, task: str) -> None:
    """Measure one contender in this process and print the result."""
    CONTENDERS[contender](make_batch("smoke", "cpu"))  # loads libraries
    print(json.dumps(measured(contender, make_batch(task, "cpu"), "cpu", 1)))


def on_cuda(contender: str, batch: Batch, repeats: int) -> dict[str, Any]:
    """Measure one contender on the device, warmed up."""
    CONTENDERS[contender](make_batch("smoke", "cuda"))
    if len(batch[0]) < 500_000:
        CONTENDERS[contender](batch)
    else:  # a part, which loads the kernels that the whole will use
        CONTENDERS[contender]((batch[0][:100_000], batch[1][:100_000], None, None))
    return measured(contender, batch, "cuda", repeats)


def main() -> None:
    """Compare, print the tables, and keep the results."""
    parser = options_of(__doc__)
    parser.add_argument("--task", default="sop", help="one or several of " + ", ".join(TASKS))
    parser.add_argument("--rivals", default="plain,faiss")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tasks = ["smoke"] if arguments.smoke else arguments.task.split(",")
    rivals = ["full", "plain", "faiss", "pml"] if arguments.smoke else arguments.rivals.split(",")
    for unknown in set(tasks) - set(TASKS):
        parser.error(f"--task must be of {', '.join(TASKS)}; got {unknown!r}.")
    for unknown in set(rivals) - set(CONTENDERS):
        parser.error(f"--rivals must be of {', '.join(CONTENDERS)}; got {unknown!r}.")
    if arguments.measure:
        measure_here(arguments.measure, tasks[0])
        return
    for task in tasks:
        compare(arguments, task, ["weiss", *rivals])


def compare(arguments: argparse.Namespace, task: str, names: list[str]) -> None:
    """Compare on one task, print the table, and keep the result."""
    on_device = arguments.device == "cuda"
    batch = make_batch(task, "cuda") if on_device else None
    if batch is None:
        results = on_cpu(names, task, arguments.repeats)
    else:
        results = {name: on_cuda(name, batch, arguments.repeats) for name in names}
    for name in names:
        for metric in NAMES:
            theirs, ours = results[name]["found"][metric], results["weiss"]["found"][metric]
            if abs(theirs - ours) > AGREEMENT:
                raise SystemExit(f"{name} disagrees: {metric} is {theirs}, weiss has {ours}")
    print(f"retrieval evaluation, {task}: {TASKS[task]} {SIZES}")
    shared: dict[str, Any] = dict(zip(SIZES, TASKS[task], strict=True))
    if "full" in names:
        shared["different"] = count_different(batch or make_batch(task, "cpu"))
        print(f"  {shared['different']} queries have other neighbours than in full precision")
    rows: list[dict[str, Any]] = []
    for name in names:
        ratio = results[name]["seconds"] / results["weiss"]["seconds"]
        extra = results[name]["extra_mib"]
        print(f"  {name:>6}: {results[name]['seconds']:.4f} s, {extra:.0f} MiB extra")
        if name != "weiss":
            print(f"          {ratio:.2f} times the speed of {name}")
        found = {"in_full": "", **results[name]["found"]}
        rows.append(
            {
                "task": task,
                "contender": name,
                "time_over_weiss": round(ratio, 3),
                "seconds": round(results[name]["seconds"], 5),
                "extra_mib": round(extra, 1),
                **{key: round(found[key], 6) for key in NAMES},
                "in_full": found["in_full"],
                **shared,
            }
        )
    keep(arguments, f"retrieval-{task}", rows, arguments.device)


if __name__ == "__main__":
    main()
