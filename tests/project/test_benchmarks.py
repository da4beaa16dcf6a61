"""Benchmarks run, so that they cannot rot, and keep what they promise at full size."""

import asyncio
import csv
import importlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").glob("bench_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_benchmark_has_a_smoke_run(path):
    done = subprocess.run([sys.executable, path, "--smoke"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d (times (faster|the throughput|the speed)|% of )", done.stdout)


def rows_of(name, *options, out):
    """Run a benchmark and return the rows it keeps."""
    command = [sys.executable, ROOT / "benchmarks" / f"bench_{name}.py", *options, "--out", out]
    subprocess.run(command, check=True)
    (result,) = out.glob("*.csv")
    return csv.DictReader(result.read_text().splitlines())


@pytest.mark.slow
def test_evaluation_at_the_size_of_sop_takes_at_most_500_mb(tmp_path):
    weiss, plain = rows_of("retrieval", "--task", "sop", "--rivals", "plain", out=tmp_path)
    assert (weiss["contender"], weiss["queries"]) == ("weiss", "60502")
    assert float(weiss["extra_mib"]) * 2**20 <= 500e6
    assert float(plain["time_over_weiss"]) > 1


@pytest.mark.slow
def test_mfcwms_is_ten_times_faster_and_twenty_times_leaner_than_its_dense_form(tmp_path):
    weiss, dense = rows_of("multi_similarity", out=tmp_path)
    assert (weiss["contender"], dense["contender"]) == ("weiss", "dense")
    sizes = [dense[name] for name in ("batch", "num_classes", "embedding_size")]
    assert sizes == ["180", "11318", "512"]
    assert float(dense["time_over_weiss"]) >= 10
    assert float(dense["memory_over_weiss"]) >= 20


@pytest.mark.slow
def test_a_search_in_100_000_items_takes_20_ms_at_most_and_finds_98_percent(tmp_path):
    options = ["--stores", "ivf", "--sizes", "100000", "--dimensions", "512"]
    (row,) = rows_of("catalogue", *options, out=tmp_path)
    assert (row["store"], row["items"], row["dimensions"]) == ("ivf", "100000", "512")
    assert float(row["search_ms"]) <= 20
    assert float(row["recall_at_10"]) >= 0.98


@pytest.mark.slow
def test_codes_are_exact_or_take_a_fifth_of_the_time_of_the_float32_product(tmp_path):
    options = ["--stores", "int8,binary", "--sizes", "100000", "--dimensions", "512"]
    int8, binary = rows_of("catalogue", *options, out=tmp_path)
    assert (int8["store"], binary["store"]) == ("int8", "binary")
    assert float(int8["exact"]) == 1
    assert float(int8["search_over_product"]) < 1
    assert float(binary["recall_at_10"]) >= 0.98
    assert float(binary["search_over_product"]) <= 0.2


@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_answer_to_somebody_else_is_an_error_of_the_server(monkeypatch, is_swapped):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_serve")
    questions = [
        bench.Question(b"POST %d\r\n" % id, id, {id: 1.0, 8: 0.5, 9: 0.25}) for id in (0, 1)
    ]

    has_ended = None

    async def answer(reader, writer):
        while line := await reader.readline():
            id = int(line.split()[1]) ^ is_swapped
            hits = [(id, 1.0), (8, 0.5), (9, 0.25)]
            results = [{"id": one, "similarity": similarity} for one, similarity in hits]
            body = json.dumps({"results": results}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    async def measure():
        nonlocal has_ended
        has_ended = asyncio.Event()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            found = await bench.client(port, questions, 0, time.perf_counter() + 0.1)
            await asyncio.wait_for(has_ended.wait(), 30)
            return found

    taken, errors = asyncio.run(measure())
    assert taken
    assert errors == (len(taken) if is_swapped else 0)


@pytest.mark.slow
def test_a_server_holds_50_clients_for_a_minute_without_an_error_or_growth(tmp_path):
    (row,) = rows_of("serve", "--contenders", "weiss", out=tmp_path)
    assert (row["clients"], row["duration_seconds"], row["errors"]) == ("50", "60.0", "0")
    assert int(row["requests"]) > 50
    assert float(row["growth_mib"]) < 16


def test_the_page_on_scale_shows_what_follows_from_the_kept_files(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = importlib.import_module("scale_on_paper").tables()
    page = (ROOT / "docs" / "scale.md").read_text()
    assert all(each in page for each in tables)
