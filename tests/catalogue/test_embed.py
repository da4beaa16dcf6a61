"""Embeddings in Parquet shards: what they hold, what a kill leaves, and indexes made of them."""

import json
import os
import signal
import sys

import numpy as np
import pytest
from glyph_catalogue import build, names_of, opened, photos, with_other_weights
from tiny import begin, environment, wait_until

from weiss.catalogue import OtherModelError, embed_images
from weiss.catalogue.embeddings_folder import EmbeddingsFolder

parquet = pytest.importorskip("pyarrow.parquet")


def embed(run, data, out, **options):
    return embed_images(run, data, out, device="cpu", quiet=True, num_workers=0, **options)


def shards(out):
    return sorted((out / "vectors").glob("vectors-*.parquet"))


def rows(out):
    return [row for path in shards(out) for row in parquet.read_table(path).to_pylist()]


def test_an_index_of_embeddings_is_the_index_of_the_images(
    glyph_run, glyph_folder, glyph_index, tmp_path
):
    embed(glyph_run, glyph_folder, tmp_path / "vectors", shard_items=100)
    assert [len(parquet.read_table(path)) for path in shards(tmp_path / "vectors")] == [100] * 3 + [
        20
    ]
    build(tmp_path / "vectors" / "model", tmp_path / "vectors", tmp_path / "index")
    one, two = opened(glyph_index), opened(tmp_path / "index")
    assert names_of(one) == names_of(two)
    for id in range(0, 320, 29):
        np.testing.assert_allclose(one.vector(id), two.vector(id), atol=1e-6)
        assert one.thumbnail(id) == two.thumbnail(id)
        found = [[h.item for h in each.search(each.vector(id)[None], 5)[0]] for each in (one, two)]
        assert found[0] == found[1]


def test_milvus_takes_a_folder_of_embeddings(glyph_run, glyph_folder, glyph_index, tmp_path):
    pytest.importorskip("pymilvus")
    embed(glyph_run, glyph_folder, tmp_path / "vectors", shard_items=100)
    build(
        tmp_path / "vectors" / "model",
        tmp_path / "vectors",
        tmp_path / "index",
        store="milvus:items.db",
    )
    one, two = opened(glyph_index), opened(tmp_path / "index")
    queries = np.stack([one.vector(id) for id in range(0, 320, 29)])
    for hits, others in zip(one.search(queries, 3), two.search(queries, 3), strict=True):
        assert [hit.item for hit in hits] == [hit.item for hit in others]
    two.close()


def test_labels_further_columns_and_unreadable_images_are_in_the_shards(lost_run, tmp_path):
    folder = photos(tmp_path / "photos", count=3)
    (folder / "class0" / "bad.jpg").write_bytes(b"no image")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    lines = [f"{name},{name.split('/')[0]},{len(name)}" for name in names]
    (folder / "list.csv").write_text("path,label,price\n" + "\n".join(lines) + "\n")
    found = embed(lost_run, folder / "list.csv", tmp_path / "vectors")
    by_path = {row["path"]: row for row in rows(tmp_path / "vectors")}
    assert sorted(by_path) == names
    for name, row in by_path.items():
        assert (row["label"], row["price"]) == (name.split("/")[0], len(name))
        assert (row["vector"] is None) == (name == "class0/bad.jpg") == (row["error"] is not None)
    assert [name for name, _ in found.skipped] == ["class0/bad.jpg"]
    assert "class0/bad.jpg: " in (tmp_path / "vectors" / "skipped.txt").read_text()


def test_finished_shards_stay_and_damaged_ones_are_made_again(lost_run, glyph_folder, tmp_path):
    out = tmp_path / "vectors"
    embed(lost_run, glyph_folder, out, shard_items=100)
    whole = rows(out)
    first, second, third, _ = shards(out)
    kept = first.stat().st_ino
    second.unlink()
    third.write_bytes(third.read_bytes()[:-10])
    with pytest.raises(ValueError, match="must be finished; 1 of 4"):
        build(out / "model", out, tmp_path / "index")
    embed(lost_run, glyph_folder, out, shard_items=100)
    assert rows(out) == whole
    assert first.stat().st_ino == kept


def test_other_images_or_another_network_are_refused(lost_run, glyph_folder, tmp_path):
    out, other = tmp_path / "vectors", with_other_weights(lost_run, tmp_path / "other")
    embed(lost_run, photos(tmp_path / "photos"), out)
    with pytest.raises(ValueError, match="these differ: the network"):
        embed(other, tmp_path / "photos", out)
    with pytest.raises(ValueError, match="these differ: the images"):
        embed(lost_run, glyph_folder, out)
    with pytest.raises(OtherModelError, match="embedded by another"):
        build(other, out, tmp_path / "index")
    words = json.loads((out / "embeddings.json").read_text())
    (out / "embeddings.json").write_text(json.dumps({**words, "format": 9}))
    with pytest.raises(ValueError, match="must have the format 1; it has 9"):
        EmbeddingsFolder(out).contents()


def test_of_a_list_what_differs_is_named(lost_run, tmp_path):
    folder, out = photos(tmp_path / "photos", count=3), tmp_path / "vectors"
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    given = folder / "list.csv"

    def write(header, label, price):
        rows = "".join(f"{name},{label},{price},x\n" for name in names)
        given.write_text(f"{header}\n{rows}")

    write("path,label,price,", "a", 1)
    found = embed(lost_run, given, out)
    told = ("columns: price", "columns that are left out: one without a name")
    assert set(told) <= set(found.lines)
    write("path,label,price,", "a", 2)
    with pytest.raises(ValueError, match=r"these differ: the further columns of the list list, or"):
        embed(lost_run, given, out)
    write("path,label,price,", "b", 1)
    with pytest.raises(ValueError, match=r"the images, their names or their classes \(3 items"):
        embed(lost_run, given, out)
    write("path,label,price,class", "a", 1)
    with pytest.raises(ValueError, match="must not be called 'class'"):
        embed(lost_run, given, tmp_path / "other")
    # How a list without further columns is written does not matter.
    given.write_text("path,label\n" + "".join(f"{name},a\n" for name in names))
    embed(lost_run, given, tmp_path / "plain")
    given.write_text("path,label\n" + "".join(f'"{name}","a"\n' for name in names))
    assert "embedded earlier" in embed(lost_run, given, tmp_path / "plain").lines[0]


def test_without_pyarrow_nothing_is_begun(lost_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"weiss\[parquet\]"):
        embed(lost_run, photos(tmp_path / "photos"), tmp_path / "vectors")
    assert not (tmp_path / "vectors").exists()


@pytest.mark.slow
@pytest.mark.dist
def test_killed_and_several_commands_give_the_shards_of_one(lost_run, glyph_folder, tmp_path):
    embed(lost_run, glyph_folder, tmp_path / "truth", shard_items=10)
    out = tmp_path / "vectors"
    words = [sys.executable, "-m", "weiss", "embed", lost_run, glyph_folder, "--out", out]
    words = [*map(str, words), "--shard-items", "10", "--device", "cpu", "--quiet"]
    killed = begin(words, env=environment())
    wait_until(lambda: len(shards(out)) > 2 or killed.poll() is not None)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = {path: path.stat().st_ino for path in shards(out)}
    several = [begin(words, env=environment(RANK=str(rank), WORLD_SIZE="2")) for rank in range(2)]
    assert [process.wait() for process in several] == [0, 0]
    assert {path: path.stat().st_ino for path in kept} == kept
    found, truth = rows(out), rows(tmp_path / "truth")
    assert [row["path"] for row in found] == [row["path"] for row in truth]
    np.testing.assert_allclose(
        [row["vector"] for row in found], [row["vector"] for row in truth], atol=1e-5
    )
