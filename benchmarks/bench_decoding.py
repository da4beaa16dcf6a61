"""Decoding into a store: this package against Pillow's own speed on every core.

The first rival is one process for each core, each in a plain loop over its share of the files
(open, convert to RGB, reduce the shorter side, array), which keeps the arrays and sends nothing.
The second is the same and drops each array: the upper limit. The third is a pool of threads that
keep the arrays. The store does the same work and collects all pixels in one block of memory of this
process.

Time: the median of several rounds after a first, files in the page cache. The store's time includes
starting its processes; those of the rivals run already. Freeing memory is not timed.

    python benchmarks/bench_decoding.py --root FOLDER     # all images below a folder
    python benchmarks/bench_decoding.py                   # 4,000 photographs made of noise
    python benchmarks/bench_decoding.py --root FOLDER --copies 5    # a larger set
    python benchmarks/bench_decoding.py --smoke
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from record import keep, options_of

from weiss._base.decoding import usable_cores
from weiss.data.cache import build_store
from weiss.data.sources import Files
from weiss.data.store import Storage, Store
from weiss.data.table import Table

SHORT_SIDE = 256
kept: list[np.ndarray] = []


def make_photographs(folder: Path, count: int) -> None:
    """Write JPEG files of 500 x 375 pixels, about as detailed as photographs."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noise = rng.integers(-12, 13, (375, 500, 3))
        pixels = np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:05d}.jpg", quality=90)


@contextlib.contextmanager
def photographs(arguments: argparse.Namespace) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and the names of its images: that of ``--root``, or one made of noise."""
    with tempfile.TemporaryDirectory() as made:
        root = arguments.root or Path(made)
        if arguments.root is None:
            make_photographs(root, 40 if arguments.smoke else 4000)
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
        if not names:
            raise SystemExit(f"--root must hold .jpg files; {root} holds none")
        yield root, names


def plain(path: str) -> np.ndarray:
    """Decode one file in the usual way."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    short = min(image.size)
    if short > SHORT_SIDE:
        width, height = (int(SHORT_SIDE * side / short) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def discarding(paths: list[str]) -> int:
    return sum(plain(path).nbytes for path in paths)


def keeping(paths: list[str]) -> int:
    """Decode files and keep the arrays until the next call."""
    kept[:] = [plain(path) for path in paths]
    return sum(array.nbytes for array in kept)


def forget(_: int) -> None:
    """Release memory to the system, so that every contender allocates it again, as the store."""
    kept.clear()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    time.sleep(0.05)  # so that every process gets one of these


def measure(
    contenders: dict[str, Callable[[], Any]], forget_all: Callable[[], None], repeats: int
) -> dict[str, float]:
    """Return the median seconds of each; all must give the same number of bytes."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    num_bytes = set()
    for name, run in contenders.items():
        # One more round, to warm up: in a virtual machine the first access to memory that another
        # contender has just released is slow.
        for number in range(repeats + 1):
            start = time.perf_counter()
            found = run()
            if number:
                seconds[name].append(time.perf_counter() - start)
            num_bytes.add(found if isinstance(found, int) else int(found.num_pixels().sum()) * 3)
            del found
            forget_all()
    assert len(num_bytes) == 1, f"the contenders disagree: {num_bytes}"
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = options_of(__doc__, device=False)
    parser.add_argument("--root", type=Path, help="a folder of images")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1, help="list every file this often")
    arguments = parser.parse_args()
    with photographs(arguments) as (root, names):
        run(root, names * arguments.copies, arguments)


def run(root: Path, names: list[str], arguments: argparse.Namespace) -> None:
    cores = usable_cores()
    table = Table(
        "photographs",
        Files(root, names),
        np.zeros(len(names), dtype=np.int64),
        ("all",),
        np.full(len(names), "train"),
    )
    paths = [str(root / name) for name in names]
    # Interleaved shares, so that no process gets the large images alone.
    shares = [paths[i::cores] for i in range(cores)]

    def weiss() -> Store:
        store, errors = build_store(
            table, Storage("memory", "measured"), short_side=SHORT_SIDE, num_workers=cores
        )
        assert not errors
        return store

    with (
        multiprocessing.get_context("spawn").Pool(cores) as pool,
        ThreadPoolExecutor(cores) as threads,
    ):
        pool.map(discarding, [share[:4] for share in shares], chunksize=1)

        def forget_all() -> None:
            forget(0)
            pool.map(forget, range(cores), chunksize=1)

        def in_threads() -> int:
            arrays = threads.map(lambda share: [plain(path) for path in share], shares)
            kept[:] = [array for share in arrays for array in share]
            return sum(array.nbytes for array in kept)

        contenders = {
            "weiss": weiss,
            "pillow processes": lambda: sum(pool.map(keeping, shares, chunksize=1)),
            "pillow processes that keep nothing": lambda: sum(
                pool.map(discarding, shares, chunksize=1)
            ),
            "pillow threads": in_threads,
        }
        if arguments.copies > 1:
            del contenders["pillow threads"]  # it takes several times as long
        seconds = measure(contenders, forget_all, 1 if arguments.smoke else arguments.repeats)
    rows = [
        {
            "contender": name,
            "time_over_weiss": round(value / seconds["weiss"], 3),
            "images": len(names),
            "processes": cores,
            "short_side": SHORT_SIDE,
        }
        for name, value in seconds.items()
    ]
    rate = len(names) / seconds["weiss"] / cores
    print(f"{len(names):,} images, {cores} cores: {rate:.0f} a core and second")
    for row in rows[1:]:
        print(f"Weiss runs at {row['time_over_weiss']:.2f} times the speed of {row['contender']}")
    keep(arguments, f"decoding-{len(names)}", rows)


if __name__ == "__main__":
    main()
