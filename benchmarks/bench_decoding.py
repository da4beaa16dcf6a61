"""Decoding into a store: this package against Pillow's own speed on every core.

The first rival is one process for each core, each in a plain loop over its share of the files
(open, convert to RGB, reduce the shorter side, array), which keeps the arrays and sends nothing.
The second is the same and drops each array: the upper limit. The third is a pool of threads that
keep the arrays. The store does the same work and collects all pixels in one block of memory of this
process. With scaled decoding (`data.scaled_decoding`) it reads JPEG files at a fraction of their
size; the rival that does so too is the first one with Pillow's `draft`.

Time: the median of several rounds in which all take turns, files in the page cache. The store's
time includes starting its processes; those of the rivals run already. Freeing memory is not timed.

    python benchmarks/bench_decoding.py --root FOLDER     # all images below a folder
    python benchmarks/bench_decoding.py                   # 4,000 photographs made of noise
    python benchmarks/bench_decoding.py --root FOLDER --copies 5    # a larger set
    python benchmarks/bench_decoding.py --width 4000 --count 12 --copies 8     # 12 megapixels
    python benchmarks/bench_decoding.py --side 112                  # small images of usual ones
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from record import keep, options_of

from weiss._base.decoding import usable_cores
from weiss._base.images import Reduction
from weiss.data.cache import build_store
from weiss.data.sources import Files
from weiss.data.store import Storage, Store
from weiss.data.table import Table

USUAL_WIDTH, USUAL_SIDE = 500, 256
kept: list[np.ndarray] = []


def make_photographs(folder: Path, count: int, width: int) -> None:
    """Write JPEG files of 4 : 3, about as detailed as photographs."""
    height = width * 3 // 4
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        noise = rng.integers(-12, 13, (height, width, 3))
        pixels = np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:05d}.jpg", quality=90)


@contextlib.contextmanager
def photographs(arguments: argparse.Namespace) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and the names of its images: that of ``--root``, or one made of noise."""
    with tempfile.TemporaryDirectory() as made:
        root = arguments.root or Path(made)
        if arguments.root is None:
            make_photographs(root, 40 if arguments.smoke else arguments.count, arguments.width)
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
        if not names:
            raise SystemExit(f"--root must hold .jpg files; {root} holds none")
        yield root, names


def plain(path: str, short_side: int, draft: bool = False) -> np.ndarray:
    """Decode one file in the usual way, or with Pillow's draft."""
    with Image.open(path) as file:
        short, size = min(file.size), file.size
        if short > short_side:
            size = tuple(int(short_side * side / short) for side in file.size)
        if draft:
            file.draft(None, size)
        image = file.convert("RGB")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image)


def discarding(paths: list[str], short_side: int) -> int:
    return sum(plain(path, short_side).nbytes for path in paths)


def keeping(paths: list[str], short_side: int, draft: bool = False) -> int:
    """Decode files and keep the arrays until the next call."""
    kept[:] = [plain(path, short_side, draft) for path in paths]
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
    """Return the median seconds of each; all must give the same number of bytes.

    Contenders take turns, so that whatever else the machine does happens to all of them. Each turn
    begins with a run that is not timed: in a virtual machine the first access to memory that
    another contender has just released is slow.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    num_bytes = set()
    for _ in range(repeats):
        for name, run in contenders.items():
            for is_timed in (False, True):
                start = time.perf_counter()
                found = run()
                if is_timed:
                    seconds[name].append(time.perf_counter() - start)
                is_number = isinstance(found, int)
                num_bytes.add(found if is_number else int(found.num_pixels().sum()) * 3)
                del found
                forget_all()
    assert len(num_bytes) == 1, f"the contenders disagree: {num_bytes}"
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = options_of(__doc__, device=False)
    parser.add_argument("--root", type=Path, help="a folder of images")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1, help="list every file this often")
    parser.add_argument(
        "--side", type=int, default=USUAL_SIDE, help="the shorter side to reduce to"
    )
    parser.add_argument("--width", type=int, default=USUAL_WIDTH, help="of photographs of noise")
    parser.add_argument("--count", type=int, default=4000, help="how many of these")
    arguments = parser.parse_args()
    with photographs(arguments) as (root, names):
        run(root, names * arguments.copies, arguments)


def run(root: Path, names: list[str], arguments: argparse.Namespace) -> None:
    cores, side = usable_cores(), arguments.side
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

    def weiss(scaled: bool) -> Store:
        reduction = Reduction(side, scaled)
        store, errors = build_store(
            table, Storage("memory", "measured"), reduction=reduction, num_workers=cores
        )
        assert not errors
        return store

    def in_processes(task: Callable[..., int], **options: Any) -> int:
        return sum(pool.map(partial(task, short_side=side, **options), shares, chunksize=1))

    with (
        multiprocessing.get_context("spawn").Pool(cores) as pool,
        ThreadPoolExecutor(cores) as threads,
    ):
        pool.map(partial(discarding, short_side=side), [share[:4] for share in shares], chunksize=1)

        def forget_all() -> None:
            forget(0)
            pool.map(forget, range(cores), chunksize=1)

        def in_threads() -> int:
            arrays = threads.map(lambda share: [plain(path, side) for path in share], shares)
            kept[:] = [array for share in arrays for array in share]
            return sum(array.nbytes for array in kept)

        contenders = {
            "weiss": lambda: weiss(scaled=False),
            "weiss, scaled decoding": lambda: weiss(scaled=True),
            "pillow processes": lambda: in_processes(keeping),
            "pillow processes with draft": lambda: in_processes(keeping, draft=True),
            "pillow processes that keep nothing": lambda: in_processes(discarding),
            "pillow threads": in_threads,
        }
        if arguments.copies > 1:
            del contenders["pillow threads"]  # it takes several times as long
        seconds = measure(contenders, forget_all, 1 if arguments.smoke else arguments.repeats)
    rows = [
        {
            "contender": name,
            "time_over_weiss": round(value / seconds["weiss"], 3),
            "time_over_scaled": round(value / seconds["weiss, scaled decoding"], 3),
            "images": len(names),
            "width": None if arguments.root else arguments.width,
            "processes": cores,
            "short_side": side,
        }
        for name, value in seconds.items()
    ]
    rate = len(names) / seconds["weiss"] / cores
    print(f"{len(names):,} images, {cores} cores: {rate:.0f} a core and second")
    for row in rows:
        name, usual, scaled = (
            row[key] for key in ("contender", "time_over_weiss", "time_over_scaled")
        )
        if not name.startswith("weiss"):
            print(f"Weiss runs at {usual:.2f} times the speed of {name}, scaled at {scaled:.2f}")
    print(f"Scaled decoding runs at {rows[0]['time_over_scaled']:.2f} times the usual speed")
    width = "" if arguments.root else f"-{arguments.width}"  # photos of a folder have many
    is_usual = width in ("", f"-{USUAL_WIDTH}") and side == USUAL_SIDE
    size = "" if is_usual else f"{width}-to-{side}"
    keep(arguments, f"decoding-{len(names)}{size}", rows)


if __name__ == "__main__":
    main()
