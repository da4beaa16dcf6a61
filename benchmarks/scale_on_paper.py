"""From kept measurements to a billion images and a hundred million classes: arithmetic, no clock.

Every number in the first table is read from a file in ``results``; the second table is computed
from them. `docs/scale.md` shows both, and a test compares them.

    python benchmarks/scale_on_paper.py
"""

import csv
import math
from dataclasses import dataclass

from record import RESULTS

IMAGES, CLASSES, SIZE = 10**9, 10**8, 512
"""Images of the collection; classes of the loss; numbers of an embedding and of a field."""
CORES, BATCH = 16, 512
"""Cores that fed the GPU in the measurement of streaming; images of a GPU in a step."""
GPUS, GPU_BYTES = 64, 139 * 2**30
"""GPUs that train; memory of one of them."""
PHOTO_BYTES = 11_250
"""Mean size of the streamed files: CUB's photos with a shorter side of 256 pixels."""
SEARCH_BYTES = 128 * 2**30
"""Memory of a machine that searches."""


@dataclass
class Measured:
    """Seconds unless said otherwise; all on one H200 except the index's."""

    forward: float  # of the network, a batch of BATCH
    step: float  # forward, backward and optimiser of the network
    streamed: float  # images a second, decoded by CORES cores
    loss: float  # a million classes, BATCH samples, TF32
    loss_bf16: float  # the same, products in bfloat16
    fields_step: float  # optimiser of a million fields
    ten_million: float  # the loss at ten million classes, 1,024 samples, TF32
    neighbours: float  # a million x 256 among themselves, exact
    search: float  # IVF, 100,000 x 512, two CPU threads: over numpy's product with all vectors
    build: float  # the same: building it


def row(name: str, **wanted: str) -> dict[str, str]:
    """Return the row of the newest results file of a subject with these entries."""
    file = sorted(RESULTS.glob(f"{name}_*.csv"))[-1]
    rows = csv.DictReader(file.read_text().splitlines())
    return next(each for each in rows if all(each[k] == v for k, v in wanted.items()))


def measured() -> Measured:
    """Read what was measured."""
    adamw = {"loss": "mf_cwms", "pairs": "all pairs", "fields_optimiser": "torch.optim.AdamW"}
    tf32 = row("classes-step", products="tf32", **adamw)
    bf16 = row("classes-step", products="bfloat16", **adamw)
    phases = ("network forward ms", "network backward ms", "network's optimiser ms")
    ten = row("classes", contender="mf_cwms", num_classes="10000000")
    million = row("retrieval-million", contender="weiss")
    ivf = row("catalogue-512", store="ivf")
    return Measured(
        forward=float(tf32["network forward ms"]) / 1e3,
        step=sum(float(tf32[each]) for each in phases) / 1e3,
        streamed=float(row("pipeline", contender="stream")["images_per_second"]),
        loss=float(tf32["loss ms"]) / 1e3,
        loss_bf16=float(bf16["loss ms"]) / 1e3,
        fields_step=float(tf32["fields' optimiser ms"]) / 1e3,
        ten_million=float(ten["seconds"]),
        neighbours=float(million["seconds"]),
        search=float(ivf["search_over_numpy"]),
        build=float(ivf["build_over_numpy_search"]),
    )


def inputs(found: Measured) -> list[tuple[str, str]]:
    """Return the lines of the first table."""
    return [
        ("ResNet-50 forward, 224 pixels, bfloat16", f"{BATCH / found.forward:,.0f} images/s"),
        ("ResNet-50 step, the same", f"{BATCH / found.step:,.0f} images/s"),
        ("photos decoded from files, 16 cores", f"at least {found.streamed:,.0f} images/s"),
        ("MFCWMS, 512 x 1 M, TF32 / bfloat16", _ms(found.loss, found.loss_bf16)),
        ("MFCWMS, 1,024 x 10 M, TF32", _ms(found.ten_million)),
        ("AdamW on a million fields", _ms(found.fields_step)),
        ("exact neighbours, 1 M x 256 among themselves", f"{found.neighbours:.1f} s"),
        (
            "IVF, 100,000 x 512, two CPU threads: one search",
            f"{found.search:.3f} of numpy's product with all vectors",
        ),
        ("the same: build", f"{found.build:.0f} such products"),
    ]


def answers(found: Measured) -> list[tuple[str, str, str]]:
    """Return the lines of the second table."""
    core = found.streamed / CORES
    decode, gpu = IMAGES / core / 3600, IMAGES * found.forward / BATCH / 3600
    vectors = IMAGES * SIZE * 4
    fields = 4 * CLASSES * SIZE * 4
    loss, loss_bf16 = (each * CLASSES / 1e6 for each in (found.loss, found.loss_bf16))
    fields_step = found.fields_step * CLASSES / 1e6 / GPUS
    step, fast = (found.step + each + fields_step for each in (loss, loss_bf16))
    steps = IMAGES / (GPUS * BATCH)
    exact = found.neighbours * (IMAGES / 1e6) ** 2 * (SIZE / 256) / 3600
    machines = math.ceil(vectors / SEARCH_BYTES)
    shard = IMAGES / machines / 1e5
    embed, train = "a billion images: ", "100 M classes: "
    return [
        (embed + "network", f"{gpu:,.0f} GPU-hours", "forward alone"),
        (embed + "decoding", f"{decode:,.0f} core-hours", f"{core:,.0f} images/s a core"),
        (embed + "cores that feed one GPU", f"{decode / gpu:,.0f}", "decoding saturates first"),
        (embed + "files", f"{IMAGES * PHOTO_BYTES / 1e12:,.0f} TB", "read once, 256 pixels"),
        (embed + "vectors", f"{vectors / 1e12:.2f} TB", "512 float32"),
        (
            embed + "machines that hold them",
            f"{machines}",
            f"128 GiB each; a byte a number would need {math.ceil(vectors / 4 / SEARCH_BYTES)}",
        ),
        (
            embed + "IVF search in one of these",
            f"{shard**0.5:.0f} times that in 100,000",
            "if it grows with the root of the items",
        ),
        (
            embed + "IVF build of one of these",
            f"{shard**1.5:,.0f} times that of 100,000",
            "if lists grow with the root of the items",
        ),
        (embed + "all pairs, exact", f"{exact:,.0f} GPU-hours", "grows with the square"),
        (train + "fields, gradient, moments", f"{fields / 1e9:,.0f} GB", "float32, AdamW"),
        (train + "least number of GPUs", f"{math.ceil(fields / GPU_BYTES)}", "139 GiB each"),
        (
            train + f"a step of {GPUS} x {BATCH}, TF32",
            f"{step:.2f} s, of which loss {loss:.2f}",
            "class shards; network " + _ms(found.step),
        ),
        (
            train + "the same, bfloat16",
            f"{fast:.2f} s, of which loss {loss_bf16:.2f}",
            "products alone in bfloat16",
        ),
        (
            train + f"a billion images on {GPUS} GPUs",
            f"{steps * step / 3600:.1f} h, bfloat16 {steps * fast / 3600:.1f} h",
            "without communication and decoding",
        ),
        (
            "classes at which the loss takes as long as the network",
            f"{found.step / found.loss:.1f} M, bfloat16 {found.step / found.loss_bf16:.1f} M",
            "for any number of GPUs",
        ),
    ]


def _ms(*seconds: float) -> str:
    return " / ".join(f"{1e3 * each:.1f}" for each in seconds) + " ms"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables() -> tuple[str, str]:
    """Return both tables."""
    found = measured()
    return (
        table(("measured", "on one H200"), list(inputs(found))),
        table(("computed", "", "because"), list(answers(found))),
    )


if __name__ == "__main__":
    print("\n\n".join(tables()))
