"""The laws of every store, against cosines computed one by one; then what each has of its own."""

import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from glyph_catalogue import add, build, opened, remove, write_glyphs

from weiss.catalogue import faiss_store, store_table
from weiss.catalogue.codes import Codes
from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.milvus_store import MilvusStore
from weiss.catalogue.open_file import OpenFile
from weiss.catalogue.records import DamagedIndexError

D = 24
KINDS = ("flat", "ivf", "hnsw", "int8", "binary")


def embeddings(count, dimension=D, seed=0, spread=0.5, classes=None):
    """Vectors as networks make them: classes are clusters on the sphere."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((classes or 1 + count // 20, dimension))
    noise = rng.standard_normal((count, dimension))
    vectors = centres[rng.integers(len(centres), size=count)] + spread * noise
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def faiss_of(ids, vectors, **options):
    """Make a faiss store of some items."""
    store = FaissStore(vectors.shape[1], **options)
    store.add(ids, vectors)
    return store


def by_hand(items, queries, k):
    """Ids and cosines of the nearest items by the definition: dict id -> vector, float64."""
    ids, cosines = [], []
    for query in queries.astype(np.float64):
        values = {}
        for number, vector in items.items():
            vector = vector.astype(np.float64)
            values[number] = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
        ranked = sorted(values, key=lambda number: (-values[number], number))[:k]
        ids.append(ranked + [-1] * (k - len(ranked)))
        cosines.append([values[number] for number in ranked] + [-np.inf] * (k - len(ranked)))
    return np.array(ids), np.array(cosines)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A file of Milvus Lite for all tests of this process, because each one starts a server."""
    return str(tmp_path_factory.mktemp("milvus") / "shared.db")


@pytest.fixture(params=[*KINDS, "milvus"])
def make(request, database):
    """Make stores of one kind; each is empty."""
    made = []

    def empty(dimension=D):
        if request.param != "milvus":
            return FaissStore(dimension, kind=request.param)
        made.append(MilvusStore(database, f"made_{len(made)}", dimension))
        return made[-1]

    yield empty
    for store in made:
        store.drop()


def test_a_search_finds_what_comparing_everything_finds(make):
    vectors, queries = embeddings(250), embeddings(9, seed=1)
    ids = np.arange(250) * 3 + 5
    store = make()
    store.add(ids, vectors)
    found, similarities = store.search(queries, 10)
    wanted, cosines = by_hand(dict(zip(ids, vectors, strict=True)), queries, 10)
    assert (found.dtype, similarities.dtype) == (np.int64, np.float32)
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, wanted, strict=True)])
    assert share >= 0.98
    for row, hits in enumerate(found):
        truth = vectors[(hits - 5) // 3].astype(np.float64) @ queries[row]
        np.testing.assert_allclose(similarities[row], truth, atol=1e-5)
    assert (np.diff(similarities, axis=1) <= 0).all()
    np.testing.assert_allclose(similarities[:, 0], cosines[:, 0], atol=1e-5)
    text = store.describe()  # one line without folders
    assert "250 items of 24 dimensions" in text
    assert not {"\n", "/"} & set(text)


def test_items_come_in_parts_and_all_of_them_are_found(make):
    vectors = embeddings(400, seed=2)
    store = make()
    for start in range(0, 400, 50):
        store.add(np.arange(start, start + 50), vectors[start : start + 50])
        assert len(store) == start + 50
    assert np.mean(store.search(vectors, 1)[0][:, 0] == np.arange(400)) >= 0.98
    assert (np.sort(store.search(embeddings(3, seed=1), 400)[0], axis=1) == np.arange(400)).all()


def test_a_store_of_an_index_is_one_entry_of_the_table(lost_run, tmp_path, monkeypatch):
    class Other(FaissStore):
        pattern = form = example = "other:.+"
        suffix = ".other"

    with pytest.raises(ValueError, match="--store must be .*; got 'other:x'"):
        build(lost_run, "glyphs", tmp_path / "index", store="other:x")
    monkeypatch.setattr(store_table, "STORES", (*store_table.STORES, Other))
    data = write_glyphs(tmp_path / "few", num_classes=3, per_class=4)
    build(lost_run, data, tmp_path / "index", store="other:x")
    add(tmp_path / "index", write_glyphs(tmp_path / "more", num_classes=1, per_class=2, first=40))
    remove(tmp_path / "index", 0)
    with opened(tmp_path / "index") as found:
        assert isinstance(found._store, Other)
        assert list((tmp_path / "index").glob("store-*.other"))
        assert len(found.search(found.vector(13)[None], 20)[0]) == 13
    build(lost_run, data, tmp_path / "index", store="faiss", replace_old=True)
    assert not isinstance(opened(tmp_path / "index")._store, Other)


def test_equal_items_come_by_id(make):
    store = make(2)
    store.add(np.array([9, 4, 7, 1]), np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32))
    ids, similarities = store.search(np.array([[1, 0], [0, 1]], np.float32), 4)
    assert ids.tolist() == [[4, 7, 9, 1], [1, 4, 7, 9]]
    assert similarities.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_a_store_with_fewer_than_k_items_fills_up_with_nothing(make):
    store = make()
    queries = embeddings(2, seed=1)
    for size in range(3):
        ids, similarities = store.search(queries, 4)
        assert ids.shape == similarities.shape == (2, 4)
        assert ((ids >= 0).sum(1) == size).all()
        assert (ids[:, size:] == -1).all()
        assert np.isneginf(similarities[:, size:]).all()
        store.add(np.array([size]), embeddings(1, seed=size))
    assert store.search(queries[:0], 4)[0].shape == (0, 4)
    store.add(np.empty(0, np.int64), np.empty((0, D), np.float32))
    assert len(store) == 3


def test_an_id_is_any_whole_number_from_zero_and_there_once(make):
    ids = np.array([2**63 - 1, 0, 2**62, 2**53 + 1, 2**31])
    store, vectors = make(), embeddings(5)
    store.add(ids, vectors)
    assert store.search(vectors, 1)[0].ravel().tolist() == ids.tolist()
    with pytest.raises(ValueError, match="ids must be new to this .*; 0 is in it already"):
        store.add(np.array([3, 0]), vectors[:2])
    with pytest.raises(ValueError, match="vectors must be finite and have unit length"):
        store.add(np.array([5]), 2 * vectors[:1])
    with pytest.raises(ValueError, match="queries must be finite and have unit length"):
        store.search(2 * vectors, 1)
    assert len(store) == 5  # a refused call adds nothing


@pytest.mark.parametrize(
    ("entry", "length"), [(2 / D**0.5, "2"), (0, "0"), (np.nan, "nan"), (np.inf, "inf")]
)
def test_what_is_no_embedding_is_refused(entry, length):
    store = FaissStore(D)
    vectors = np.stack([embeddings(1)[0], np.full(D, entry, np.float32)])
    words = f"must be finite and have unit length for FaissStore; row 1 has length {length}"
    with pytest.raises(ValueError, match=f"vectors {words}"):
        store.add(np.arange(2), vectors)
    with pytest.raises(ValueError, match=f"queries {words}"):
        store.search(vectors, 1)
    assert len(store) == 0


# faiss: files, kinds, recall.


@pytest.mark.parametrize(
    ("kind", "mapped"),
    [("flat", True), ("ivf", False), ("ivf", True), ("hnsw", False)]
    + [(kind, mapped) for kind in ("int8", "binary") for mapped in (False, True)],
)
def test_a_saved_store_is_the_same_store(tmp_path, kind, mapped):
    vectors, queries = embeddings(300), embeddings(20, seed=1)
    store = faiss_of(np.arange(300) + 2**40, vectors, kind=kind)
    store.save(tmp_path / "a.faiss")
    again = FaissStore.load(tmp_path / "a.faiss", dimension=D, mapped=mapped)
    assert (len(again), again.kind, again.describe()) == (len(store), kind, store.describe())
    for one, other in zip(again.search(queries, 12), store.search(queries, 12), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(again.contents(), store.contents(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["a.faiss"]
    if mapped:
        (tmp_path / "a.faiss").unlink()  # as when an index is written anew
        np.testing.assert_array_equal(again.search(queries, 3)[0], store.search(queries, 3)[0])
        with pytest.raises(ValueError, match="must be in memory to be changed"):
            again.add(np.array([1]), vectors[:1])
    else:
        again.add(np.array([1]), queries[:1])
        assert again.search(queries[:1], 1)[0] == 1


@pytest.mark.parametrize(("kind", "mapped"), [("ivf", False), ("ivf", True), ("hnsw", False)])
def test_what_an_older_version_has_removed_is_not_found(tmp_path, kind, mapped):
    """It wrote files with places without items: lists without the vector, a graph with it."""
    vectors, gone = embeddings(300), np.arange(0, 300, 9)
    store = faiss_of(np.arange(300), vectors, kind=kind)
    if kind == "ivf":
        store._index.remove_ids(gone)
    store._ids[gone] = -1
    store.save(tmp_path / "a.faiss")
    again = FaissStore.load(tmp_path / "a.faiss", mapped=mapped)
    left = np.setdiff1d(np.arange(300), gone)
    assert len(again) == len(left)
    found, _ = again.search(vectors[gone], 300)
    assert (np.sort(found[:, : len(left)], axis=1) == left).all()
    assert (found[:, len(left) :] == -1).all()
    assert np.mean(again.search(vectors[left], 1)[0][:, 0] == left) >= 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path, kind):
    path = tmp_path / "a.faiss"
    faiss_of(np.arange(40), embeddings(40), kind=kind).save(path)
    whole = path.read_bytes()
    step = len(whole) // 20
    cut = [whole[:end] for end in range(0, len(whole), step)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for at in [*range(0, len(whole), step), *range(len(whole) - 64, len(whole), 4)]
    ]
    for wrong in [*cut, *flipped, whole + b"x", b"something else" * 20]:
        path.write_bytes(wrong)
        for mapped in (False, True):
            with pytest.raises(ValueError, match="a.faiss must be a store written by Weiss.*again"):
                FaissStore.load(path, mapped=mapped)
    path.write_bytes(whole)
    assert len(FaissStore.load(path)) == 40
    with pytest.raises(ValueError, match="must hold vectors of 7 dimensions; it holds 24"):
        FaissStore.load(path, dimension=7)
    with pytest.raises(FileNotFoundError):
        FaissStore.load(tmp_path / "none.faiss")


def test_a_file_that_is_removed_while_it_is_read_is_missing_not_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.faiss"
    faiss_of(np.arange(40), embeddings(40)).save(path)
    real = faiss_store.read_facts

    def facts_then_removed(path, **options):
        found = real(path, **options)
        path.unlink()  # as whoever changes the index does
        return found

    monkeypatch.setattr(faiss_store, "read_facts", facts_then_removed)
    with pytest.raises(FileNotFoundError, match="a.faiss"):
        FaissStore.load(path)


def test_a_mapped_file_is_not_read_to_its_end_to_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_store, "CHUNK", 64)
    path = tmp_path / "a.faiss"
    faiss_of(np.arange(400), embeddings(400)).save(path)
    read = []
    real = faiss_store._digest
    monkeypatch.setattr(faiss_store, "_digest", lambda f, n, r: read.append(n) or real(f, n, r))
    FaissStore.load(path, mapped=True)
    assert read == [64]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    FaissStore.load(path, mapped=True)  # the index folder's --check tells
    with pytest.raises(ValueError, match="must be a store written by Weiss"):
        FaissStore.load(path)
    assert max(read) > 400 * D * 4
    content[30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must be a store written by Weiss"):
        FaissStore.load(path, mapped=True)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.faiss"
    faiss_of(np.arange(40), embeddings(40)).save(path)
    before = path.read_bytes()
    larger = faiss_of(np.arange(50), embeddings(50))
    larger._ids = None  # what faiss wrote is there, the rest fails
    with pytest.raises(AttributeError):
        larger.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.faiss"]


def test_a_store_is_exact_until_it_is_large(monkeypatch):
    monkeypatch.setattr(faiss_store, "EXACT_BELOW", 1000)
    vectors = embeddings(1500)
    store = faiss_of(np.arange(999), vectors[:999])
    assert store.describe() == (
        "faiss flat: exact search over 999 items of 24 dimensions (below 1,000 items that is fast)"
    )
    store.add(np.arange(999, 1000), vectors[999:1000])  # the call that reaches the bound rebuilds
    assert store.kind == "ivf"
    assert "63 lists read" in store.describe()
    assert "recall@10 " in store.describe()
    store.add(np.arange(1000, 1500), vectors[1000:])
    np.testing.assert_array_equal(store.contents()[0], np.arange(1500))
    np.testing.assert_array_equal(store.contents()[1], vectors)


@pytest.mark.parametrize(
    ("kind", "spread"),
    [("ivf", 0.1), ("ivf", 3.0), ("hnsw", 0.5), ("binary", 0.1), ("binary", 3.0)],
)
def test_an_approximate_store_keeps_its_promise_for_new_queries(kind, spread):
    """From tight classes to a sphere without any structure; k inside and beyond what was set."""
    vectors = embeddings(3000, spread=spread)
    queries = embeddings(200, seed=1, spread=spread, classes=151)
    store = faiss_of(np.arange(3000), vectors, kind=kind)
    exact = np.sort(queries @ vectors.T, axis=1)[:, ::-1]
    for k in (1, 10, 100, 300):
        _, similarities = store.search(queries, k)
        share = np.mean(similarities >= exact[:, k - 1 : k] - 1e-6)
        assert share >= 0.98, (k, store.describe())
    assert min(store._recalls.values()) >= 0.98


@pytest.mark.parametrize("size", [1, 2, 3, 11])
@pytest.mark.parametrize("kind", ["ivf", "hnsw", "int8", "binary"])
def test_a_small_store_claims_to_read_no_more_than_it_has(kind, size):
    said = faiss_of(np.arange(size), embeddings(size), kind=kind).describe()
    claimed = [int(found) for found in re.findall(r"(\d+) candidates", said)]
    lists = [(int(some), int(of)) for some, of in re.findall(r"(\d+) of (\d+) lists", said)]
    assert (len(claimed), len(lists)) == (kind != "ivf", kind in ("ivf", "binary"))
    assert all(1 <= number <= size for number in claimed), said
    assert all(1 <= some <= of <= size for some, of in lists), said


def test_a_store_that_grows_into_other_clusters_measures_again():
    rng = np.random.default_rng(0)
    old = embeddings(2000, spread=0.05)
    noise = rng.standard_normal((1800, D))
    new = (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)
    store = faiss_of(np.arange(2000), old, kind="ivf")
    before = store._effort(10)
    store.add(np.arange(2000, 3800), new)  # not yet twice as many: the same lists
    assert store._built == 2000
    assert store._effort(10) > before
    exact = np.sort(new[::10] @ np.concatenate([old, new]).T, axis=1)[:, -10:]
    found = store.search(new[::10], 10)[1]
    assert np.mean(found >= exact[:, :1] - 1e-6) >= 0.98


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "int8", "binary"])
def test_a_store_comes_out_the_same_every_time(tmp_path, kind):
    vectors = embeddings(1500)
    for name in "ab":
        faiss_of(np.arange(1500), vectors, kind=kind).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_copies_of_one_item_neither_break_the_lists_nor_the_measurement():
    vectors = np.repeat(embeddings(4), 300, axis=0)
    store = faiss_of(np.arange(1200), vectors, kind="ivf")
    ids, similarities = store.search(vectors[:1], 300)
    assert sorted(ids[0].tolist()) == list(range(300))
    np.testing.assert_allclose(similarities, 1, atol=1e-6)
    assert set(store._recalls.values()) == {1}


def test_another_thread_may_search_while_torch_works():
    """Both libraries bring threads of their own; neither may stand in the other's way."""
    import torch

    vectors = embeddings(3000)
    store = faiss_of(np.arange(3000), vectors, kind="ivf")
    wanted = store.search(vectors[:50], 10)
    threads = torch.get_num_threads()
    matrix = torch.randn(200, 200)
    answers = []
    worker = threading.Thread(
        target=lambda: answers.extend(store.search(vectors[:50], 10) for _ in range(20))
    )
    worker.start()
    products = [matrix @ matrix for _ in range(50)]
    worker.join()
    assert all(torch.equal(product, products[0]) for product in products)
    assert len(answers) == 20
    for answer in answers:
        np.testing.assert_array_equal(answer[0], wanted[0])
    assert torch.get_num_threads() == threads


def test_what_pytorch_metric_learning_does_to_faiss_changes_nothing():
    """Its import replaces methods of faiss, for good: hence a process of its own."""
    program = """
import numpy as np
from faiss.contrib import torch_utils  # as pytorch_metric_learning.utils.inference does
from weiss.catalogue.faiss_store import FaissStore
rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
for kind in ("flat", "ivf", "hnsw", "int8", "binary"):
    store = FaissStore(16, kind=kind)
    store.add(np.arange(3000), rows)
    found = store.search(rows[:9], 3)[0]
    assert (found[:, 0] == np.arange(9)).all(), kind
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# faiss with codes: bounds, vectors that stay in the file, what does not fit.


def hard_sets(dimension=48, count=1500):
    """Yield sets on which codes err most, or where many items lie inside of their slack."""
    rng = np.random.default_rng(5)

    def unit(rows):
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    centre = unit(rng.standard_normal((1, dimension)))
    noise = rng.standard_normal((count, dimension))
    yield "one cluster narrower than the slack", unit(centre + 1e-3 * noise)
    yield "copies, moved by a rounding", unit(np.repeat(unit(noise[:30]), 50, 0) + 1e-7 * noise)
    yield "copies", np.repeat(unit(noise[:30]), 50, axis=0)
    yield "axes", np.eye(dimension, dtype=np.float32)[rng.integers(dimension, size=count)]
    yield "denormal parts", unit(np.concatenate([noise[:, :4], 1e-40 * noise[:, 4:]], axis=1))
    yield "a sphere without structure", unit(noise)
    yield "two opposite points", unit(np.sign(noise[:, :1]) * centre + 1e-4 * noise)


HARD = dict(hard_sets())


@pytest.mark.parametrize("opened_as", ["made", "read", "mapped"])
@pytest.mark.parametrize("items", HARD)
def test_int8_codes_give_the_exact_answer_however_the_items_lie(items, opened_as, tmp_path):
    vectors, rng = HARD[items], np.random.default_rng(7)
    drawn = embeddings(12, vectors.shape[1], seed=1)
    queries = np.concatenate([drawn, vectors[rng.integers(len(vectors), size=28)]])
    store = faiss_of(np.arange(len(vectors)), vectors, kind="int8")
    if opened_as != "made":
        made, path = store._coded, tmp_path / "a.faiss"
        store.save(path)
        store = FaissStore.load(path, mapped=opened_as == "mapped")
        for name in ("scale", "error", "length"):
            assert getattr(store._coded.codes, name) == getattr(made.codes, name) > 0
        assert store._coded.candidates == made.candidates
        assert store._coded.settled == made.settled
    truth = np.sort(queries.astype(np.float64) @ vectors.T.astype(np.float64), axis=1)[:, ::-1]
    for k in (1, 10, 150):
        found, similarities = store.search(queries, k)
        exact = np.take_along_axis(
            queries.astype(np.float64) @ vectors.T.astype(np.float64), found, 1
        )
        np.testing.assert_allclose(exact, truth[:, :k].clip(-1, 1), atol=5e-7)
        np.testing.assert_allclose(similarities, exact.clip(-1, 1), atol=5e-7)


@pytest.mark.parametrize("name", HARD)
def test_no_cosine_differs_from_its_int8_code_by_more_than_the_slack(name):
    vectors = HARD[name]
    codes = Codes.make("int8", vectors[:700], None)
    codes.add(vectors[:700])
    codes.add(vectors[700:])
    queries = np.concatenate([embeddings(30, vectors.shape[1], seed=1), vectors[::100]])
    places, similarities, slack = codes.search(queries, len(vectors))
    cosines = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    wrong = np.abs(np.take_along_axis(cosines, places, 1) - similarities)
    assert (wrong <= slack[:, None]).all()
    assert (slack < 0.05).all()


def test_items_outside_of_the_range_of_int8_codes_are_found_too():
    """The scale is set by the first items; later ones may have larger components."""
    vectors = embeddings(400)
    store = faiss_of(np.arange(400), vectors, kind="int8")
    error = store._coded.codes.error
    turn = store._coded.codes._matrix[:5].astype(np.float32)  # all of it in one component
    store.add(np.arange(400, 405), turn)
    assert store._coded.codes.error > 10 * error
    found, similarities = store.search(np.concatenate([turn, vectors[:20]]), 3)
    assert found[:, 0].tolist() == [*range(400, 405), *range(20)]
    np.testing.assert_allclose(similarities[:, 0], 1, atol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_a_mapped_store_with_codes_reads_the_vectors_of_candidates_alone(
    tmp_path, kind, monkeypatch
):
    vectors = embeddings(4000)
    store = faiss_of(np.arange(4000), vectors, kind=kind)
    store.save(tmp_path / "a.faiss")
    again = FaissStore.load(tmp_path / "a.faiss", mapped=True)
    read, real = [], OpenFile.read_parts
    monkeypatch.setattr(
        OpenFile, "read_parts", lambda *given: read.append(sum(given[2])) or real(*given)
    )
    queries = embeddings(20, seed=1)
    np.testing.assert_array_equal(again.search(queries, 10)[0], store.search(queries, 10)[0])
    assert 10 * 20 <= sum(read) / (4 * D) <= 20 * 4000 / 4
    again.search(queries, 4000)
    assert sum(read) / (4 * D) >= 20 * 4000


@pytest.mark.parametrize("kind", ["int8", "binary"])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("has_pread", [False, True])
def test_a_store_with_codes_whose_file_is_cut_off_is_damaged(
    tmp_path, kind, mapped, has_pread, monkeypatch
):
    if not has_pread:  # as on Windows
        monkeypatch.delattr("os.pread", raising=False)
    path = tmp_path / "a.faiss"
    faiss_of(np.arange(400), embeddings(400), kind=kind).save(path)
    store = FaissStore.load(path, mapped=mapped)
    assert (store.search(embeddings(400), 1)[0][:, 0] == np.arange(400)).mean() >= 0.98
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size // 3)
    with pytest.raises(DamagedIndexError, match="It was cut off while it was open"):
        store.search(embeddings(3, seed=1), 400)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *[(kind, {"index_bytes": at}) for kind in ("int8", "binary") for at in (0, 2**60)],
        *[("int8", {"kind": "binary"}), ("binary", {"kind": "int8"}), ("int8", {"scale": 0.0})],
        *[("int8", {"kind": "flat"}), ("flat", {"kind": "int8"}), ("ivf", {"kind": "binary"})],
    ],
)
def test_facts_that_do_not_fit_the_codes_are_refused(tmp_path, monkeypatch, kind, change):
    store = faiss_of(np.arange(90), embeddings(90), kind=kind)
    real = faiss_store.json.dumps
    monkeypatch.setattr(faiss_store.json, "dumps", lambda facts: real(facts | change))
    store.save(tmp_path / "a.faiss")
    with pytest.raises(DamagedIndexError, match="a.faiss of the index is damaged"):
        FaissStore.load(tmp_path / "a.faiss")


# Milvus: names, addresses, persistence.

WRITER = """
import sys, numpy as np
from weiss.catalogue.milvus_store import MilvusStore
store = MilvusStore(sys.argv[1], "shoes", 3)
store.add(np.array([5, 6, 7]), np.eye(3, dtype=np.float32))
store.keep_only(np.array([5, 7]))
print("written", flush=True)
sys.stdin.readline()
"""


def test_a_milvus_file_is_opened_again_by_another_process(tmp_path, capfd):
    path = tmp_path / "items.db"
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WRITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout.readline() == "written\n"
        with pytest.raises(ValueError, match="items.db must be .* that no other program has open"):
            MilvusStore(str(path), "shoes", 3)
        writer.communicate("\n")
    assert writer.returncode == 0
    store = MilvusStore(str(path), "shoes", 3, create=False)
    assert len(store) == 2
    assert store.search(np.eye(3, dtype=np.float32), 1)[0][[0, 2], 0].tolist() == [5, 7]
    with pytest.raises(ValueError, match="vectors of 4 dimensions.*belongs to another index"):
        MilvusStore(str(path), "shoes", 4)
    with pytest.raises(ValueError, match="collection hats must exist; it does not"):
        MilvusStore(str(path), "hats", 3, create=False)
    store.drop()
    assert "Traceback" not in capfd.readouterr().err


def test_an_address_where_nobody_answers_is_refused_soon():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls, says nothing
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"must answer at http://127.0.0.1:{port}; none"):
            MilvusStore(f"127.0.0.1:{port}", "a", 3, timeout=1)
    with pytest.raises(ConnectionError, match="Start it, or check the address"):
        MilvusStore(f"http://127.0.0.1:{port}", "a", 3, timeout=1)


def test_a_file_that_is_no_database_is_refused(tmp_path, capfd):
    (tmp_path / "a.db").write_bytes(b"something else")
    with pytest.raises(ValueError, match="a.db must be a Milvus Lite database, which is a folder"):
        MilvusStore(str(tmp_path / "a.db"), "a", 3)
    with pytest.raises(ValueError, match="the folder of b.db must exist"):
        MilvusStore(str(tmp_path / "none" / "b.db"), "a", 3)
    with pytest.raises(ValueError, match="must be host:port, .*got 'nonsense'"):
        MilvusStore("nonsense", "a", 3)
    assert "Traceback" not in capfd.readouterr().err


def test_more_neighbours_than_milvus_gives_are_refused(database):
    store = MilvusStore(database, "few", 2)
    with pytest.raises(ValueError, match="k must be at most 16,384 for MilvusStore"):
        store.search(np.eye(2, dtype=np.float32), 16_385)
    store.drop()


def test_without_pymilvus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ImportError, match=r"pip install 'weiss\[milvus\]'"):
        MilvusStore("localhost:19530", "a", 3)
