"""A served catalogue under 50 clients at once: errors, throughput, waiting times, memory.

The server is a process of its own on loopback, as `weiss serve` starts it, with an index of glyphs.
Every client sends a picture, waits for its ten nearest items, and sends the next, over one
connection. The pictures are those of items, as the server itself shows them. Before the load each
is searched with alone, and must find its own item, or a twin of the same picture. An answer under
load counts as an error unless it is 200 and finds what this picture found alone: an answer that was
meant for somebody else does not. Memory is the resident size of the server, without the processes
that decode: its growth is the median of the last tenth of the time minus that of the second tenth,
when everything has been used once.

The rival is the same server with one picture a forward pass.

    python benchmarks/bench_serve.py                      50 clients for 60 s each way
    python benchmarks/bench_serve.py --side 640           the same with JPEG files of 640 x 640
    python benchmarks/bench_serve.py --index INDEX        one's own
    python benchmarks/bench_serve.py --smoke
"""

import argparse
import asyncio
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from record import keep, options_of

BOUNDARY = b"benchmark-boundary"
CONTENDERS = {"weiss": 32, "single": 1}
"""Pictures that may share a forward pass."""


SAME = 1e-4
"""Similarities that differ by less are equal: a batch of another size rounds differently."""


@dataclass
class Question:
    """A request, and what it must find.

    Args:
        request: as it goes over the wire.
        id: the item whose picture it carries.
        alone: item id -> similarity, as found when nobody else asked; nearest first.
    """

    request: bytes
    id: int
    alone: dict[int, float] = field(default_factory=dict)

    def is_answered(self, status: bytes, answer: dict[str, Any]) -> bool:
        """Say whether an answer is the one to this question, and not to another."""
        if status != b"200":
            return False
        found = {hit["id"]: hit["similarity"] for hit in answer["results"]}
        # The last ones may be others of the same similarity; the order of equals may be another.
        least = min(self.alone.values()) + SAME
        return len(found) == len(self.alone) and all(
            abs(found.get(id, -2.0) - similarity) <= SAME
            for id, similarity in self.alone.items()
            if similarity > least or similarity == max(self.alone.values())
        )


def make_index(folder: Path, num_items: int) -> Path:
    """Index some glyphs by a network that has not trained: it costs as much as one that has."""
    from bench_index import make_run, many_glyphs

    from weiss.catalogue import build_index

    table = many_glyphs(num_items)
    run = make_run(folder / "run", table)
    build_index(run.folder, table, folder / "index", device="cpu", quiet=True)
    return folder / "index"


def serve_here(index: str, max_batch: int) -> None:
    """Be the server."""
    from weiss.server import Limits, serve

    gather = Limits().gather_seconds if max_batch > 1 else 0.0
    serve(
        index,
        port=0,
        device="cpu",
        limits=Limits(max_batch=max_batch, gather_seconds=gather),
    )


def make_questions(port: int, side: int, count: int = 200) -> list[Question]:
    """Return requests with the pictures of items that lie evenly apart."""
    from PIL import Image

    ids = json.loads(get(port, "/map"))["ids"]
    questions = []
    for id in ids[:: max(1, len(ids) // count)][:count]:
        content = get(port, f"/items/{id}/thumbnail")
        if side:
            file = io.BytesIO()
            image = Image.open(io.BytesIO(content)).convert("RGB")
            image.resize((side, side)).save(file, "JPEG", quality=90)
            content = file.getvalue()
        body = b"--%b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\n" % BOUNDARY
        body += content + b"\r\n--%b--\r\n" % BOUNDARY
        head = b"POST /search?k=10 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(
            body
        )
        head += b"Content-Type: multipart/form-data; boundary=%b\r\n\r\n" % BOUNDARY
        questions.append(Question(head + body, id))
    return questions


def get(port: int, path: str) -> bytes:
    """Return what stands at an address of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        content: bytes = answer.read()
    return content


async def ask_alone(port: int, questions: list[Question], is_exact: bool) -> None:
    """Ask every question once, and keep its answer.

    Args:
        port: of the server.
        questions: whose answers are not known.
        is_exact: whether each must find its own item, or one of the same picture.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for question in questions:
        status, answer = await exchange(reader, writer, question.request)
        assert status == b"200", answer
        question.alone = {hit["id"]: hit["similarity"] for hit in answer["results"]}
        nearest = next(iter(question.alone))
        if is_exact and nearest != question.id:
            pictures = [get(port, f"/items/{id}/thumbnail") for id in (nearest, question.id)]
            assert pictures[0] == pictures[1], f"{question.id} finds {nearest} first"
    writer.close()
    await writer.wait_closed()


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[bytes, dict[str, Any]]:
    """Send a request; return status and content of the answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return head.split(b" ")[1], json.loads(await reader.readexactly(length))


async def client(
    port: int, questions: list[Question], first: int, end: float
) -> tuple[list[float], int]:
    """Ask one question after the other until the end; return the seconds of each, and errors."""
    taken: list[float] = []
    errors = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
        question = questions[(first + len(taken)) % len(questions)]
        start = time.perf_counter()
        try:
            errors += not question.is_answered(*await exchange(reader, writer, question.request))
        except (OSError, asyncio.IncompleteReadError, KeyError):
            errors += 1
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        taken.append(time.perf_counter() - start)
    writer.close()
    await writer.wait_closed()
    return taken, errors


async def watch(process: psutil.Process, end: float) -> list[tuple[float, int]]:
    """Note the server's resident size now and then."""
    seen = []
    while time.perf_counter() < end:
        seen.append((time.perf_counter(), process.memory_info().rss))
        await asyncio.sleep(0.1)
    return seen


async def load(
    server: "subprocess.Popen[str]", port: int, side: int, clients: int, duration: float
) -> dict[str, Any]:
    """Put the server under load; return what was seen."""
    questions = make_questions(port, side)
    await ask_alone(port, questions, is_exact=not side)  # enlarged it is another picture
    await client(port, questions, 0, time.perf_counter() + duration / 20)  # warm it up
    start = time.perf_counter()
    end = start + duration
    visits = [client(port, questions, 7 * number, end) for number in range(clients)]
    *found, sizes = await asyncio.gather(*visits, watch(psutil.Process(server.pid), end))
    taken = sorted(seconds for each, _ in found for seconds in each)
    at = np.array([(moment - start) / duration for moment, _ in sizes])
    size = np.array([bytes_ for _, bytes_ in sizes]) / 2**20
    growth = np.median(size[at > 0.9]) - np.median(size[(at > 0.1) & (at < 0.2)])
    return {
        "requests": len(taken),
        "errors": sum(errors for _, errors in found),
        "requests_per_second": len(taken) / duration,
        "median_ms": 1e3 * statistics.median(taken),
        "p99_ms": 1e3 * taken[int(0.99 * len(taken))],
        "resident_mib": float(size.max()),
        "growth_mib": float(growth),
    }


def measure(index: Path, side: int, max_batch: int, clients: int, duration: float) -> Any:
    """Start a server, put it under load, stop it."""
    command = [sys.executable, __file__, "--serve", str(index), "--max-batch", str(max_batch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "in a browser" in line)
            port = int(line.split(" in a browser")[0].rsplit(":", 1)[1])
            return asyncio.run(load(server, port, side, clients, duration))
        finally:
            server.terminate()


def main() -> None:
    """Compare, print the table, and keep the result."""
    parser = options_of(__doc__, device=False)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=0, help="enlarge pictures, as JPEG files")
    parser.add_argument("--index", type=Path, help="one's own index")
    parser.add_argument("--contenders", default="weiss,single")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--max-batch", type=int, default=32, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_here(arguments.serve, arguments.max_batch)
        return
    clients, duration = arguments.clients, arguments.seconds
    if arguments.smoke:
        clients, duration, arguments.items = 4, 1.0, 200
    names = arguments.contenders.split(",")
    with tempfile.TemporaryDirectory() as folder:
        index = arguments.index or make_index(Path(folder), arguments.items)
        results = {
            name: measure(index, arguments.side, CONTENDERS[name], clients, duration)
            for name in names
        }
    what = arguments.index or f"{arguments.items:,} glyphs"
    print(f"serving {what} to {clients} clients for {duration:g} s each")
    rows = []
    for name, found in results.items():
        ratio = results[names[0]]["requests_per_second"] / found["requests_per_second"]
        print(
            f"  {name:>6}: {found['errors']} errors in {found['requests']:,} requests, "
            f"{found['requests_per_second']:.0f} a second, median {found['median_ms']:.1f} ms, "
            f"99th percentile {found['p99_ms']:.1f} ms, {found['resident_mib']:.0f} MiB "
            f"({found['growth_mib']:+.1f} MiB)"
        )
        if name != names[0]:
            print(f"          {ratio:.2f} times the throughput of one picture a pass")
        rows.append(
            {
                "contender": name,
                "clients": clients,
                "duration_seconds": duration,
                "items": arguments.items,
                "side": arguments.side or 32,
                "requests": found["requests"],
                "errors": found["errors"],
                "throughput_of_weiss_over_this": round(ratio, 3),
                "p99_over_median": round(found["p99_ms"] / found["median_ms"], 2),
                "growth_mib": round(found["growth_mib"], 1),
            }
        )
    keep(arguments, "serve", rows)


if __name__ == "__main__":
    main()
