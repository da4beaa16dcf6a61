"""Retrieval metrics against golden values, nested loops, PML, and themselves in every setting."""

import json
import math
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import workers
from loops import metrics_by_loops
from workers import some_embeddings

from weiss import concatenate_embeddings, evaluate_retrieval, retrieval_metrics

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_metrics_are_those_of_the_oracle(case):
    query = torch.tensor(case["query"], dtype=torch.float64)
    gallery = ()
    if not case["gallery_is_query"]:
        gallery = torch.tensor(case["gallery"], dtype=torch.float64), case["gallery_labels"]
    found = retrieval_metrics(query, case["query_labels"], *gallery)
    for name, expected in case["expected"].items():
        assert found[name] == pytest.approx(expected, abs=1e-12)


def tricky_points(kind, seed, number):
    """Few distinct points, so that many distances tie, and labels that occur once or not at all."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, number // 3, size=number)
    if kind == "euclidean":  # on a grid distances tie between different points too
        return random.integers(1, 4, size=(number, 2)).astype(np.float64), labels
    # Along the axes, with lengths that are powers of two, cosines are exact and tie exactly.
    axes = np.concatenate([np.eye(3), -np.eye(3)])[random.integers(0, 6, size=number)]
    return axes * 2.0 ** random.integers(-3, 4, size=(number, 1)), labels


@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
@pytest.mark.parametrize(("seed", "budget"), [(0, None), (1, 4096), (2, None), (3, 4096)])
def test_metrics_are_those_of_nested_loops_with_ties_and_lonely_classes(kind, seed, budget):
    points, labels = tricky_points(kind, seed, 23)
    sets = [{int(label)} for label in labels]
    ks = {"recall_at": (1, 3, 50), "precision_at": (1, 3, 50), "map_at": (1, 3, 50)}
    options = {"distance": kind, "memory_budget": budget, **ks}

    found = retrieval_metrics(points, labels, **options)
    expected = metrics_by_loops(kind, points.tolist(), sets)
    assert found["queries_left_out"] == 23 - expected["queries"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name

    gallery, gallery_labels = tricky_points(kind, seed + 100, 17)
    found = retrieval_metrics(points, labels, gallery, gallery_labels, **options)
    gallery_sets = [{int(label)} for label in gallery_labels]
    expected = metrics_by_loops(kind, points.tolist(), sets, gallery.tolist(), gallery_sets)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(3))
def test_multi_hot_items_are_relevant_when_they_share_a_class(seed):
    random = np.random.default_rng(seed)
    points = random.normal(size=(20, 4))
    hot = random.random((20, 6)) < 0.2
    sets = [set(np.flatnonzero(row)) for row in hot]
    expected = metrics_by_loops("cosine", points.tolist(), sets)
    for labels in (hot, torch.from_numpy(hot), hot.astype(float), torch.from_numpy(hot).int()):
        found = retrieval_metrics(points, labels, recall_at=(1, 3, 50))
        for name in ("map_at_r", "r_precision", "recall_at_3", "queries"):
            assert found[name] == pytest.approx(expected[name], abs=1e-12)


def test_pml_agrees_on_random_data():
    with warnings.catch_warnings(action="ignore"):
        from pytorch_metric_learning.distances import CosineSimilarity
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
        from pytorch_metric_learning.utils.inference import CustomKNN

    torch.manual_seed(0)
    query, gallery = torch.randn(60, 8), torch.randn(80, 8)
    query_labels, gallery_labels = torch.randint(9, (60,)), torch.randint(7, (80,))
    names = {
        "precision_at_1": "precision_at_1",
        "r_precision": "r_precision",
        "mean_average_precision_at_r": "map_at_r",
    }
    calculator = AccuracyCalculator(
        include=list(names), k="max_bin_count", knn_func=CustomKNN(CosineSimilarity())
    )
    with warnings.catch_warnings(action="ignore"):
        alone = calculator.get_accuracy(query, query_labels)
        against = calculator.get_accuracy(query, query_labels, gallery, gallery_labels)
    for theirs, ours in (
        (alone, retrieval_metrics(query, query_labels)),
        (against, retrieval_metrics(query, query_labels, gallery, gallery_labels)),
    ):
        for their_name, our_name in names.items():
            assert ours[our_name] == pytest.approx(theirs[their_name], abs=1e-9)


def test_every_kind_of_label_gives_the_same_numbers():
    embeddings, labels = some_embeddings()
    names = [f"class {label}" for label in labels.tolist()]
    kinds = [
        labels,
        labels.to(torch.uint8),
        labels.float(),
        labels.numpy().astype(np.float32),
        labels.tolist(),
        labels + 2**60,  # neighbours share a float
        5 - labels * 10**17,
        names,
        np.array(names),
        np.array(names, dtype=object),
        torch.nn.functional.one_hot(labels, 12),
    ]
    results = [retrieval_metrics(embeddings, kind) for kind in kinds]
    assert all(result == results[0] for result in results)
    assert 0.1 < results[0]["map_at_r"] < 0.9


def test_kinds_and_layouts_of_arrays_give_the_same_numbers(tmp_path):
    embeddings, labels = some_embeddings()
    array, labels = embeddings.numpy(), labels.numpy()
    np.memmap(tmp_path / "e.npy", np.float32, "w+", shape=array.shape)[:] = array
    read_only = np.memmap(tmp_path / "e.npy", np.float32, "r", shape=array.shape)
    expected = retrieval_metrics(embeddings, labels)
    for given in (array, read_only, np.asfortranarray(array), array.astype(">f4")):
        for budget in (None, 10_000, 1):
            assert retrieval_metrics(given, labels, memory_budget=budget) == expected
    assert retrieval_metrics(array[::-1], labels[::-1]) == pytest.approx(expected)
    assert retrieval_metrics(embeddings.T.contiguous().T, labels) == expected
    assert concatenate_embeddings([read_only]).shape == (90, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_searched_in_float32(dtype):
    embeddings, labels = some_embeddings()
    rounded = embeddings.to(dtype)
    assert retrieval_metrics(rounded, labels) == retrieval_metrics(rounded.float(), labels)


def test_inputs_are_not_changed_and_gradients_do_not_matter():
    embeddings, labels = some_embeddings()
    before = embeddings.clone()
    expected = retrieval_metrics(embeddings, labels)
    assert torch.equal(embeddings, before)
    assert retrieval_metrics(embeddings.requires_grad_(), labels) == expected


def test_the_query_is_left_out_by_identity_not_by_being_first():
    # Two equal points of different classes: each is the other's nearest, wherever it stands.
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    found = evaluate_retrieval(embeddings, [0, 1, 0, 1], recall_at=(1, 2, 3))
    assert found.per_query["recall_at_1"].tolist() == [0.0, 0.0, 0.0, 0.0]
    # The last two see the equal points tie: the first of them comes first.
    assert found.per_query["recall_at_2"].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_per_query_and_per_class_values_average_to_the_summary():
    embeddings, labels = some_embeddings()
    labels[0] = 99  # alone: left out
    names = np.array([f"class {label}" for label in labels.tolist()])
    found = evaluate_retrieval(embeddings, names)
    summary, classes = found.summary(), found.per_class()
    assert found.query_index.tolist() == list(range(1, 90))
    assert summary["queries_left_out"] == 1
    assert "class 99" not in classes
    assert sum(values["queries"] for values in classes.values()) == summary["queries"] == 89
    weighted = sum(values["queries"] * values["map_at_r"] for values in classes.values())
    assert weighted / 89 == pytest.approx(summary["map_at_r"])
    rows = found.query_labels == "class 3"
    expected = found.per_query["map_at_r"][rows].mean()
    assert classes["class 3"]["map_at_r"] == pytest.approx(expected)


def test_per_class_values_of_multi_hot_labels_count_a_query_in_each_of_its_classes():
    embeddings, labels = some_embeddings()
    hot = torch.nn.functional.one_hot(labels, 12) | torch.nn.functional.one_hot(labels.flip(0), 12)
    found = evaluate_retrieval(embeddings, hot)
    for label, values in found.per_class().items():
        assert values["queries"] == hot[:, label].sum()


def test_the_interval_and_the_comparison_use_the_values_of_the_queries():
    embeddings, labels = some_embeddings(200)
    good = evaluate_retrieval(embeddings, labels)
    noise = torch.randn(200, 16, generator=torch.Generator().manual_seed(5))
    bad = evaluate_retrieval(embeddings + 3 * noise, labels)
    interval = good.interval("map_at_r")
    assert interval.low < interval.mean == good.summary()["map_at_r"] < interval.high
    test = good.compare(bad)
    assert test.difference == pytest.approx(good.summary()["map_at_r"] - bad.summary()["map_at_r"])
    assert test.p_value < 0.001 < test.low
    assert good.compare(good).p_value == 1.0


def test_clustering_finds_clear_clusters_and_not_noise():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 4
    clear = 10 * torch.eye(4)[labels] + 0.1 * torch.randn(80, 4, generator=generator)
    found = retrieval_metrics(clear, labels, clustering=True)
    assert found["nmi"] == pytest.approx(1.0)
    assert found["ami"] == pytest.approx(1.0)
    noise = torch.randn(80, 4, generator=generator)
    assert retrieval_metrics(noise, labels, clustering=True)["ami"] < 0.2


def test_concatenated_embeddings_have_equal_say():
    a, b = torch.randn(5, 3), 100 * torch.randn(5, 2)
    joined = concatenate_embeddings([a, b.numpy()])
    assert joined.shape == (5, 5)
    cosine = torch.nn.functional.cosine_similarity
    for i in range(5):
        for j in range(5):
            both = (cosine(a[i], a[j], dim=0) + cosine(b[i], b[j], dim=0)) / 2
            assert cosine(joined[i], joined[j], dim=0).item() == pytest.approx(
                both.item(), abs=1e-6
            )


def test_a_gallery_on_disk_is_searched_in_little_memory(tmp_path):
    code = """
        import resource, numpy as np, torch
        from weiss import retrieval_metrics
        shape = (300_000, 128)
        retrieval_metrics(torch.eye(4), [0, 0, 1, 1])
        gallery = np.memmap("gallery.bin", np.float32, "r", shape=shape)
        labels = np.arange(len(gallery)) % 30_000
        used = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) * 1024
        limit = used + 100 * 2**20  # the gallery alone is 147 MiB
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        query = torch.from_numpy(np.array(gallery[:64])) + 0.01
        found = retrieval_metrics(query, labels[:64], gallery, labels, memory_budget=32 * 2**20)
        print(found["precision_at_1"])
        try:
            np.array(gallery)
        except MemoryError:
            print("the limit holds")
    """
    gallery = np.memmap(tmp_path / "gallery.bin", np.float32, "w+", shape=(300_000, 128))
    random = np.random.default_rng(0)
    for start in range(0, len(gallery), 30_000):
        gallery[start : start + 30_000] = random.standard_normal((30_000, 128), np.float32)
    gallery.flush()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["1.0", "the limit holds"], done.stderr


@pytest.mark.dist
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_give_the_numbers_of_one(world, tmp_path):
    embeddings, labels = some_embeddings()
    expected = retrieval_metrics(embeddings, labels)
    arguments = (world, tmp_path / "store", expected)
    torch.multiprocessing.spawn(workers.evaluate, arguments, nprocs=world)


def against(gallery, labels):
    return {"gallery": gallery, "gallery_labels": labels}


X, Y = some_embeddings(10, 3)
BAD = {
    "nan": (X.index_fill(0, torch.tensor([3, 7]), math.nan), Y, {}, "NaN or infinity in rows 3, 7"),
    "zero": (X.index_fill(0, torch.tensor([2]), 0.0), Y, {}, "no zero vector .* rows 2"),
    "too few labels": (X, Y[:9], {}, "query_labels must have one row for each of the 10 .* got 9"),
    "list": (X.tolist(), Y, {}, "query must be a torch.Tensor or numpy array"),
    "integers": (X.long(), Y, {}, "query must be floating point .*int64"),
    "one dimension": (X[0], Y, {}, r"query must have shape \(N, D\)"),
    "empty": (X[:0], Y[:0], {}, r"query must have shape \(N, D\)"),
    "half labels": (X, Y + 0.5, {}, "query_labels must be whole numbers"),
    "nan labels": (X, Y * math.nan, {}, "query_labels must be whole numbers"),
    "no relevant": (X, range(10), {}, "at least one query must have a relevant item .* none of 10"),
    "half hot": (X, np.full((10, 3), 0.5), {}, "multi-hot query_labels must be 0 or 1"),
    "3-d labels": (X, np.zeros((10, 1, 1)), {}, "query_labels must be classes of shape"),
    "objects": (X, [None] * 10, {}, "query_labels must be integers or strings"),
    "distance": (X, Y, {"distance": "cosin"}, "distance must be one of .* Did you mean 'cosine'"),
    "k": (X, Y, {"recall_at": (0,)}, "recall_at must be at least 1 .*got 0"),
    "budget": (X, Y, {"memory_budget": 0}, "memory_budget must be at least 1 .*got 0"),
    "infinity": (X / 0, Y, {}, "NaN or infinity in rows 0, 1, 2, 3, 4, ..."),
    "minus infinity": (X.index_fill(0, torch.tensor([3]), -math.inf), Y, {}, "infinity in rows 3"),
    "sparse": (X.to_sparse(), Y, {}, "query must be a dense tensor"),
    "long double": (X.numpy().astype(np.longdouble), Y, {}, "16, 32 or 64 bits.*float128"),
    "one k": (X, Y, {"recall_at": 5}, r"recall_at must be several k, for example \(5,\)"),
    "no labels": (X, Y, {"gallery": X}, "given together; got the embeddings without the labels"),
    "no gallery": (X, Y, {"gallery_labels": Y}, "given together; got the labels without the emb"),
    "columns": (X, Y, against(X[:, :5], Y), "same number of columns; got 16 and 5"),
    "kinds": (X, Y, against(X, ["a"] * 10), "both be integers or both be strings"),
    "hot and not": (X, Y, against(X, torch.eye(10)), "both classes or both multi-hot"),
    "other classes": (X, Y, against(X, Y + 100), "at least one query must have a relevant item"),
    "devices": (X, Y, against(X.to("meta"), Y), "must be on one device; got cpu and meta"),
    "bfloat16": (X, torch.tensor([256, 257] * 5).bfloat16() + 2, {}, "at most 256, .* got 258"),
    "float16": (X, torch.full((10,), 5000.0).half(), {}, "at most 2048, .* got 5000"),
    "float32": (X, np.full(10, 2.0**25, np.float32), {}, "at most 16777216"),
    "float64": (X, np.full(10, 2.0**60), {}, "at most 9007199254740992"),
    "uint64": (X, np.full(10, 2**64 - 1, np.uint64), {}, "fit 64-bit signed integers"),
    "large": (X, [2**70] * 10, {}, "fit 64-bit signed integers"),
    "mixture": (X, ["a", 1] * 5, {}, "all be integers or all be strings; got a mixture"),
    "column": (X, np.ones((10, 1)), {}, r"got \(10, 1\). Flatten"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_bad_input_is_refused_in_words(mistake):
    embeddings, labels, options, message = BAD[mistake]
    labels = list(labels) if isinstance(labels, range) else labels
    with pytest.raises((ValueError, TypeError), match=message):
        retrieval_metrics(embeddings, labels, **options)


def test_a_process_outside_the_group_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: -1)
    with pytest.raises(ValueError, match="this process must belong to the group"):
        retrieval_metrics(X, Y, group=object())


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("cosine", 1e-25), ("euclidean", 1e-10), ("cosine", 1e20), ("euclidean", 1e20)],
)
def test_the_scale_of_embeddings_does_not_matter(kind, scale):
    expected = retrieval_metrics(*some_embeddings(), distance=kind)
    embeddings, labels = some_embeddings()
    assert retrieval_metrics(embeddings * scale, labels, distance=kind) == expected


def test_half_precision_parts_are_scaled_in_float32():
    joined = concatenate_embeddings([torch.full((3, 512), 3000.0).half()])
    torch.testing.assert_close(joined.norm(dim=1), torch.ones(3))


def test_a_bar_is_shown_for_a_long_search_unless_unwanted(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr("weiss._base.progress.time.monotonic", lambda: next(clock))
    retrieval_metrics(X, Y, progress=False)
    assert capsys.readouterr().err == ""
    retrieval_metrics(X, Y)
    assert "searching" in capsys.readouterr().err


MEMORY = {  # embeddings, labels, further arguments
    "neighbours": "randn(3000, 8), arange(3000) % 2, {'recall_at': (100_000,)}",
    "queries": "randn(1, 256).repeat(150_000, 1), arange(150_000) % 7, few",
    "multi-hot": "randn(6000, 8), arange(6000)[:, None] % 200 == arange(200), {}",
}


def test_a_search_keeps_to_its_budget():
    code = f"""
        from torch import arange, randn
        from pathlib import Path
        from weiss import retrieval_metrics
        def peak():
            return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        retrieval_metrics(randn(400, 8), arange(400) % 3)
        few = {{"gallery": randn(20, 256), "gallery_labels": arange(20) % 7}}
        for case in {list(MEMORY.values())}:
            x, y, o = eval(case)
            Path("/proc/self/clear_refs").write_text("5")
            before = peak()
            retrieval_metrics(x, y, memory_budget=64 * 2**20, **o)
            print(peak() - before)
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    for case, megabytes in zip(MEMORY, done.stdout.split(), strict=True):
        # The budget is for the search; labels, relevance and results come beside it.
        assert float(megabytes) < 64 + 64, case


def test_comparing_different_queries_is_refused():
    first = evaluate_retrieval(X, Y)
    with pytest.raises(ValueError, match="on the same queries"):
        first.compare(evaluate_retrieval(X[:8], Y[:8]))
    with pytest.raises(ValueError, match="on the same queries"):
        first.compare(evaluate_retrieval(X.flip(0), Y.flip(0)))
    with pytest.raises(ValueError, match="metric must be one of .* for the other system"):
        evaluate_retrieval(X, Y, map_at=(3,)).compare(first, "map_at_3")
    with pytest.raises(ValueError, match="metric must be one of .* Did you mean 'map_at_r'"):
        first.interval("map_at_")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one"),
        ([X, X[:5]], r"lengths \[10, 5\]"),
        ([X, 0 * X], r"parts\[1\] must have no zero"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        concatenate_embeddings(parts)
