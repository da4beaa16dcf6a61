"""Columns of a list: kept in the index through every change, shown with hits, and filtered by."""

import csv
import json
import random
import shutil
import time
from contextlib import suppress

import numpy as np
import pytest
from glyph_catalogue import build, file_of, names_of, opened, photos, put

from weiss.catalogue import (
    ConditionError,
    DamagedIndexError,
    add_items,
    compact_index,
    embed_images,
    filtering,
    remove_items,
)
from weiss.catalogue import search as searching
from weiss.catalogue.filtering import Condition, nearest_of
from weiss.catalogue.gallery_page import write_gallery
from weiss.catalogue.segments import Items
from weiss.data.list_columns import as_number

COLOURS = ("red", "green", "")


def write_list(path, folder, columns, label=True):
    """List the photos of a folder with columns; return each row by its name."""
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.jpg"))
    rows = {}
    for at, name in enumerate(names):
        own = {"path": name, "label": name.split("/")[0]} if label else {"path": name}
        rows[name] = {**own, **{key: make(at) for key, make in columns.items()}}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(next(iter(rows.values()))))
        writer.writeheader()
        writer.writerows(rows.values())
    return rows


COLUMNS = {
    "Price": lambda at: f"{at / 2:.2f}" if at % 4 else "",
    "colour": lambda at: COLOURS[at % 3],
    "code": lambda at: f"{at:03d}",
    "url": lambda at: f"https://example.com/{at}?a=1&b=<c>",
}


@pytest.fixture(scope="module")
def listed(lost_run, tmp_path_factory):
    """A folder with 24 photos, their list, its rows, and an index of it."""
    folder = photos(tmp_path_factory.mktemp("listed") / "photos", count=24)
    rows = write_list(folder / "list.csv", folder, COLUMNS)
    build(lost_run, folder / "list.csv", folder.parent / "index")
    return folder, rows, folder.parent / "index"


@pytest.fixture(scope="module")
def priced(listed):
    return opened(listed[2])


def value_of(row, column):
    """The value of a row as the index must keep it."""
    given = row["label"] if column == "class" else row.get("Price" if column == "price" else column)
    if given in ("", None):
        return None
    return float(given) if column == "price" else given


def test_values_come_back_with_every_item_and_missing_ones_do_not(listed, priced):
    _, rows, _ = listed
    assert priced.columns == ("price", "colour", "code", "url")
    for name, id in names_of(priced).items():
        must = {key: value_of(rows[name], key) for key in priced.columns}
        assert priced.item(id).columns == {k: v for k, v in must.items() if v is not None}
    (hits,) = priced.search(priced.vector(0)[None], 1)
    assert hits[0].as_dict()["columns"] == hits[0].item.columns
    json.dumps(hits[0].as_dict(), allow_nan=False)


WHERE = ["price<5", "price >= 5.5", "price=3.5", "price!=3.5", "class=class1", "class!=class1"]
WHERE += ["colour=red", "colour != red", "colour<red", "code=007", "code>=010", "Price<=2"]
PYTHON = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "!=": "__ne__"}


def holds(row, text):
    """Whether a row satisfies a condition, by its definition."""
    condition = Condition.parse(text)
    have = value_of(row, condition.column)
    if have is None:
        return False
    wanted = float(condition.value) if isinstance(have, float) else condition.value
    return getattr(have, PYTHON.get(condition.sign, "__eq__"))(wanted)


@pytest.mark.parametrize("where", [[each] for each in WHERE] + [["price<9", "colour=green"]])
def test_hits_are_the_nearest_of_those_that_satisfy_the_conditions(listed, priced, where):
    _, rows, _ = listed
    ids = names_of(priced)
    right = sorted(ids[name] for name, row in rows.items() if all(holds(row, w) for w in where))
    assert 0 < len(right) < len(ids)
    assert priced.matching(where).tolist() == right
    for query in (0, 7):
        own = priced.vector(query)
        cosines = {
            id: sum(float(a) * float(b) for a, b in zip(own, priced.vector(id), strict=True))
            for id in right
            if id != query
        }
        for k in (1, 5, 100):
            (hits,) = priced.search(own[None], k, leave_out=[query], where=where)
            best = sorted(cosines, key=lambda id: (-cosines[id], id))[:k]
            assert [hit.item.id for hit in hits] == best
            assert [h.similarity for h in hits] == pytest.approx(
                [cosines[i] for i in best], abs=1e-5
            )


def test_many_items_are_asked_of_the_store_until_there_are_k(listed, priced, monkeypatch):
    where, queries = ["price<5"], np.stack([priced.vector(3), priced.vector(20)])

    def found(k):
        return [[hit.item for hit in hits] for hits in priced.search(queries, k, where=where)]

    must = {k: found(k) for k in (1, 4, 100)}
    monkeypatch.setattr(searching, "COMPARED", 0)  # as if more than 100,000 satisfied them
    asked, search = [], priced._store.search
    monkeypatch.setattr(priced._store, "search", lambda q, k: asked.append(k) or search(q, k))
    assert {k: found(k) for k in must} == must
    assert len(asked) > len(must), "the first answers of the store must have been too few"
    asked.clear()
    monkeypatch.setattr(searching, "MOST_ASKED", 0)  # as if none of the nearest did
    assert {k: found(k) for k in must} == must
    assert asked == []


def test_equal_items_come_by_their_ids_whatever_the_blocks(tmp_path):
    random.seed(0)

    class Repeated(Items):
        def __init__(self, vectors):
            self.ids, self._vectors = np.arange(len(vectors)) * 2, vectors

        def vectors_of(self, ids, at_once):
            rows = ids // 2
            for start in range(0, len(rows), 3):
                yield ids[start : start + 3], self._vectors[rows[start : start + 3]]

    axes = np.eye(4, dtype=np.float32)
    vectors = axes[[random.randrange(4) for _ in range(40)]]
    items = Repeated(vectors)
    ids = items.ids[::2]
    for k in (1, 3, 7, 30):
        found, similarities = nearest_of(items, ids, axes, k)
        for query, row, sims in zip(axes, found, similarities, strict=True):
            must = sorted(ids.tolist(), key=lambda id: (-float(vectors[id // 2] @ query), id))[:k]
            assert row[: len(must)].tolist() == must
            assert (row[len(must) :] == -1).all()
            assert sims[: len(must)].tolist() == [float(vectors[i // 2] @ query) for i in must]


@pytest.mark.parametrize(
    ("where", "facts"),
    [
        ("prize<5", ["'prize'", "class, price, colour, code, url", "'price'"]),
        ("class=clas1", ["class0, class1, class2", "'clas1'"]),
        ("class<class1", ["= or !="]),
        ("price<cheap", ["price", "numbers", "'cheap'"]),
        ("price=cheap", ["numbers", "'cheap'"]),
        ("price<12345678901234567", ["numbers", "at most 15 digits", "'12345678901234567'"]),
        ("code<7", ["with 7", "its 24 values are text", "'000'", "as these are written"]),
        ("price", ["class=kiwi or price<5", "'price'"]),
        ("price<", ["a value"]),
        ("=5", ["a column"]),
        ("price<" + "9" * 2000, ["at most 1,000 letters", "2,006"]),
        (["price<5"] * 33, ["at most 32", "33"]),
    ],
)
def test_a_condition_that_means_nothing_here_is_refused(priced, where, facts):
    with pytest.raises(ConditionError) as refused:
        priced.search(priced.vector(0)[None], 3, where=where)
    for fact in facts:
        assert fact in str(refused.value)


LETTERS = 60_000
ADVERSARIAL = [
    *(" " * LETTERS, "a" * LETTERS, "a " * (LETTERS // 2), "=" * LETTERS, "!" * LETTERS),
    *("a" + " " * LETTERS + "b", " " * LETTERS + "=", "a" + " " * LETTERS + "!b"),
    *("a=" + " " * LETTERS, "a" + " " * LETTERS + "=5", "a!" * (LETTERS // 2), "\n" * LETTERS),
]


@pytest.mark.parametrize("most", [filtering.MOST_LETTERS, 2 * LETTERS])
def test_a_long_condition_takes_no_time_whether_its_length_is_allowed_or_not(monkeypatch, most):
    monkeypatch.setattr(filtering, "MOST_LETTERS", most)
    begun = time.process_time()
    for text in ADVERSARIAL:
        with suppress(ConditionError):
            Condition.parse(text)
    # Linear: some milliseconds. Quadratic: 16 seconds for spaces alone.
    assert time.process_time() - begun < 1.0


def test_a_condition_may_have_spaces_around_its_parts_and_any_value():
    for text in ("price<5", " price < 5 ", "\tPrice <5\n", "price\n<\n5"):
        assert Condition.parse(text) == Condition("price", "<", "5")
    assert Condition.parse("a b == <c> = d!") == Condition("a b", "=", "<c> = d!")
    assert Condition.parse("price<=-1") == Condition("price", "<=", "-1")
    assert Condition.parse("price=" + "9" * 900).value == "9" * 900
    for text in ("a!b=5", " =5", "a=", "a= ", "!=5", "", "a"):
        with pytest.raises(ConditionError, match="a condition must be a column"):
            Condition.parse(text)


def test_an_unmatched_condition_finds_nothing(priced):
    assert priced.search(priced.vector(0)[None], 3, where=["price<-1"]) == [[]]
    assert priced.search(priced.vector(0)[None], 3, leave_out=[0], where="colour=blue") == [[]]


def test_columns_survive_additions_removals_and_compaction(listed, lost_run, tmp_path):
    folder, rows, _ = listed
    index = tmp_path / "index"
    build(lost_run, folder / "list.csv", index)
    more = photos(tmp_path / "more", count=5, first=100)
    stock = {"stock": lambda at: str(at), "price": lambda at: f"{at + 50}"}
    added = write_list(more / "more.csv", more, stock)
    change = add_items(index, more / "more.csv", device="cpu", quiet=True)
    assert "columns: stock, price" in change.lines
    bare = photos(tmp_path / "bare", count=3, first=200)
    add_items(index, bare, device="cpu", quiet=True)  # a folder has no columns
    gone = sorted(rows)[:3] + sorted(added)[:1]
    remove_items(index, gone, quiet=True)
    for change_again in (lambda: None, lambda: compact_index(index, quiet=True)):
        change_again()
        now = opened(index)
        assert now.columns == ("price", "colour", "code", "url", "stock")
        for name, id in names_of(now).items():
            if name in rows:
                must = {key: value_of(rows[name], key) for key in now.columns}
            else:
                row = added.get(name, {})
                must = {key: float(row[key]) if key in row else None for key in ("stock", "price")}
            assert now.item(id).columns == {k: v for k, v in must.items() if v is not None}
        (hits,) = now.search(now.vector(5)[None], 50, where="price>=50")
        assert {hit.item.name for hit in hits} == set(added) - set(gone)
        assert all(isinstance(hit.item.columns["stock"], int) for hit in hits)


def test_a_list_with_text_where_the_index_has_numbers_is_told_and_numbers_can_be_compared(
    listed, lost_run, tmp_path
):
    folder, rows, _ = listed
    index = tmp_path / "index"
    build(lost_run, folder / "list.csv", index)
    more = photos(tmp_path / "more", count=4, first=100)
    price = {"price": lambda at: ("on request", "2", "3", "")[at], "colour": lambda at: "red"}
    added = write_list(more / "more.csv", more, price)
    change = add_items(index, more / "more.csv", device="cpu", quiet=True)
    (told,) = [line for line in change.lines if "another kind" in line]
    assert "price holds text, such as 'on request'; in the index it holds numbers" in told
    assert "colour" not in told
    now = opened(index)
    ids = names_of(now)
    numbers = {ids[name]: value_of(row, "price") for name, row in rows.items()}
    texts = {ids[name]: row["price"] for name, row in added.items() if row["price"]}
    assert sorted(texts.values()) == ["2", "3", "on request"]

    def those(every, law):
        return {id for id, value in every.items() if value is not None and law(value)}

    for where, must in {
        "price<5": those(numbers, lambda v: v < 5),
        "price>=2": those(numbers, lambda v: v >= 2),
        "price=2": those(numbers, lambda v: v == 2),  # and the text
        "price!=2": those(numbers, lambda v: v != 2),
        "price=on request": those(texts, lambda v: v == "on request"),
        "price!=on request": those(numbers, lambda v: True),
        "price>=on request": those(texts, lambda v: v >= "on request"),
        "price<zero": those(texts, lambda v: v < "zero"),
    }.items():
        if where in ("price=2", "price!=2", "price!=on request"):
            wanted = where.split("=", 1)[1]
            must |= those(texts, lambda v: (v == wanted) != ("!" in where))  # noqa: B023
        assert set(now.matching(where).tolist()) == must, where
        assert must
    with pytest.raises(ConditionError, match="at most 15 digits"):
        now.matching("price<12345678901234567")
    again = photos(tmp_path / "again", count=2, first=200)
    write_list(again / "again.csv", again, {"price": lambda at: ("none", "7")[at]})
    change = add_items(index, again / "again.csv", device="cpu", quiet=True)
    assert not [line for line in change.lines if "another kind" in line]  # it has both already


def test_text_is_compared_letter_by_letter_whatever_the_sign(listed, priced):
    _, rows, _ = listed
    ids = names_of(priced)
    for sign, method in {"=": "__eq__", **PYTHON}.items():
        for value in ("005", "0055", "00", "x", "!"):
            must = {ids[n] for n, row in rows.items() if getattr(row["code"], method)(value)}
            where = f"code{sign}{value}"
            assert set(priced.matching(where).tolist()) == must, where


def test_columns_that_changed_are_told_where_the_photo_is_known(listed, lost_run, tmp_path):
    folder, _, _ = listed
    index = tmp_path / "index"
    build(lost_run, folder / "list.csv", index)
    photos(folder / "later", count=1, first=300)
    try:
        dearer = {**COLUMNS, "Price": lambda at: str(at + 1)}
        rows = write_list(folder / "dearer.csv", folder, dearer)
        change = add_items(index, folder / "dearer.csv", device="cpu", quiet=True)
        assert change.num_added == 1
        told = [line for line in change.lines if "other values" in line]
        assert len(told) == 1
        assert told[0].startswith("24 of them have other values in price")
        with pytest.raises(ValueError, match="other values in price"):
            add_items(index, folder / "dearer.csv", device="cpu", quiet=True)
        remove_items(index, list(rows)[:2], quiet=True)
        add_items(index, folder / "dearer.csv", device="cpu", quiet=True)
        now = opened(index)
        ids = names_of(now)
        assert [now.item(ids[name]).columns["price"] for name in list(rows)[:2]] == [1, 2]
    finally:
        for path in (folder / "later").rglob("*.jpg"):
            path.unlink()


def test_an_index_of_embeddings_has_the_columns_of_the_list(listed, lost_run, priced, tmp_path):
    pytest.importorskip("pyarrow")
    folder, _, _ = listed
    (folder / "class0" / "bad.jpg").write_bytes(b"no image")
    try:
        rows = write_list(folder / "bad.csv", folder, COLUMNS)
        options = {"device": "cpu", "quiet": True, "num_workers": 0}
        embed_images(lost_run, folder / "bad.csv", tmp_path / "vectors", shard_items=7, **options)
    finally:
        (folder / "class0" / "bad.jpg").unlink()
    build(tmp_path / "vectors" / "model", tmp_path / "vectors", tmp_path / "index")
    found = opened(tmp_path / "index")
    assert found.columns == priced.columns
    assert len(found) == len(priced)
    for name, id in names_of(found).items():
        must = {key: value_of(rows[name], key) for key in found.columns}
        assert found.item(id).columns == {k: v for k, v in must.items() if v is not None}


def test_a_parquet_list_keeps_numbers_times_and_bools_and_names_the_rest(lost_run, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = photos(tmp_path / "photos", count=3)
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.jpg"))
    columns = {
        "path": names,
        "label": ["a", "b", "c"],
        "Price": pyarrow.array([4.5, None, float("nan")]),
        "sold": pyarrow.array([True, False, None]),
        "day": pyarrow.array([0, 1, None], pyarrow.date32()),
        "ean": pyarrow.array([10**17, 5, None]),
        "count": pyarrow.array([1, 2, 3], pyarrow.int8()),
        "tags": pyarrow.array([["x", "y"], [], None]),
        "kind": pyarrow.array(["u", "u", None]).dictionary_encode(),
        "raw": pyarrow.array([b"1", b"2", None]),
        "far": pyarrow.array([float("inf"), 0.0, None]),
    }
    parquet.write_table(pyarrow.table(columns), folder / "list.parquet")
    change = build(lost_run, folder / "list.parquet", tmp_path / "index")
    assert "columns: price, sold, day, ean, count, tags, kind" in change.lines
    (told,) = [line for line in change.lines if line.startswith("columns that are left out: ")]
    assert "raw, of type binary" in told
    assert "far, of type double" in told
    found = opened(tmp_path / "index")
    first, second, third = (found.item(names_of(found)[name]).columns for name in names)
    own = {"price": 4.5, "sold": True, "day": "1970-01-01", "ean": "100000000000000000"}
    assert first == {**own, "count": 1, "tags": '["x", "y"]', "kind": "u"}
    assert second == {
        **{"sold": False, "day": "1970-01-02", "ean": "5", "count": 2},
        **{"tags": "[]", "kind": "u"},
    }
    assert third == {"count": 3}
    ids = names_of(found)
    assert found.matching("sold=True").tolist() == [ids[names[0]]]
    assert found.matching("sold!=true").tolist() == [ids[names[1]]]
    assert found.matching("day<1970-01-02").tolist() == [ids[names[0]]]


def test_a_column_of_two_meanings_is_refused_and_one_without_a_name_is_named(lost_run, tmp_path):
    folder = photos(tmp_path / "photos", count=3)
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.jpg"))
    listed = folder / "list.csv"
    for header in ("path,label,class", "path,label,price,Price"):
        rest = ",1" * (header.count(",") - 1)
        listed.write_text("\n".join([header, *(f"{name},a{rest}" for name in names)]))
        with pytest.raises(ValueError, match="[Rr]ename"):
            build(lost_run, listed, tmp_path / "index")
    listed.write_text("\n".join([",path,label", *(f"{at},{n},a" for at, n in enumerate(names))]))
    change = build(lost_run, listed, tmp_path / "index")
    assert "columns that are left out: one without a name" in change.lines


def test_the_names_of_columns_are_cleaned_first_and_each_that_stays_can_be_in_a_condition(
    lost_run, tmp_path
):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = photos(tmp_path / "photos", count=3)
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.jpg"))
    own = {"path": names, "label": ["a", "b", "c"]}
    for name in (" class", "Class ", "\tclass\n"):
        parquet.write_table(pyarrow.table({**own, name: [1, 2, 3]}), folder / "list.parquet")
        with pytest.raises(ValueError, match=r"must not be called 'class'.* Rename it"):
            build(lost_run, folder / "list.parquet", tmp_path / "refused")
    further = [" price ", "a=b", "a!b", "a<b", "a>b", "a b", "x\x1by", "price"]
    table = {**own, **{name: [1, 2, 3] for name in further}}
    parquet.write_table(pyarrow.table(table), folder / "list.parquet")
    change = build(lost_run, folder / "list.parquet", tmp_path / "index")
    (told,) = [line for line in change.lines if line.startswith("columns that are left out: ")]
    for name in ("a=b", "a!b", "a<b", "a>b"):
        assert f"{name} (a name must have none of ! < = >: rename it)" in told
    found = opened(tmp_path / "index")
    assert found.columns == ("price", "a b", "x\ufffdy", "price (2)")
    for name in found.columns:
        assert len(found.matching(f"{name}>1")) == 2


def test_a_page_of_hits_shows_columns_and_conditions(priced, tmp_path):
    (hits,) = priced.search(priced.vector(3)[None], 2, where=["price>=5"])
    pixels = np.zeros((8, 8, 3), np.uint8)
    write_gallery(tmp_path / "page.html", priced, [("x", pixels, hits)], where=["price>=5"])
    page = (tmp_path / "page.html").read_text()
    assert "Only items with price&gt;=5." in page
    for hit in hits:
        assert f"price: {hit.item.columns['price']:g}" in page
        assert "&amp;b=&lt;c&gt;" in page


@pytest.mark.parametrize("text", ["1_0", "0x10", "٣", "1e400", "inf", "nan", "+5", "00", "1,5"])
def test_what_is_no_plain_number_stays_text(text):
    assert as_number(text) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"price": [1.0]},
        {"price": [[]] * 24},
        {"price": [{}] * 24},
        {"price": [10**400] * 24},
        {"price": "x" * 24},
        [],
        None,
    ],
)
def test_forged_columns_are_refused(listed, tmp_path, columns):
    index = shutil.copytree(listed[2], tmp_path / "index")
    words = json.loads(file_of(index, "items").read_text())
    put(index, file_of(index, "items"), json.dumps({**words, "columns": columns}).encode())
    with pytest.raises(DamagedIndexError, match="items-"):
        opened(index)


def test_forged_text_moves_no_cursor_and_names_of_columns_are_text(listed, tmp_path):
    index = shutil.copytree(listed[2], tmp_path / "index")
    words = json.loads(file_of(index, "items").read_text())
    columns = {"a\x1b[2J": ["two\nlines\x1b[2J"] * 24, "class": [5] * 24}
    put(index, file_of(index, "items"), json.dumps({**words, "columns": columns}).encode())
    found = opened(index)
    assert found.item(0).columns == {"a\ufffd[2J": "two\nlines\ufffd[2J", "class": 5}
    assert len(found.matching("class=class1")) == 8  # the label, as always


def test_an_index_without_columns_of_an_older_version_opens(listed, tmp_path):
    index = shutil.copytree(listed[2], tmp_path / "index")
    words = json.loads(file_of(index, "items").read_text())
    del words["columns"]
    put(index, file_of(index, "items"), json.dumps(words).encode())
    found = opened(index)
    assert (found.columns, found.item(0).columns) == ((), {})
    assert len(found.matching("class=class1")) == 8
    with pytest.raises(ConditionError, match=r"\(class\)"):
        found.matching("price<5")
