"""Columns of images embedded: as paths, as bytes, in tables, frames and plain columns."""

import numpy as np
import pytest
from glyph_catalogue import photos

from weiss.catalogue import EmbedColumn, embed_images
from weiss.catalogue.embed_column import MADE

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = photos(tmp_path_factory.mktemp("photos"), count=7)
    (found / "class1" / "bad.jpg").write_bytes(b"no image")
    return found


@pytest.fixture(scope="module")
def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))


@pytest.fixture(scope="module")
def truth(lost_run, folder, tmp_path_factory):
    """The vector of each name that `weiss embed` writes; None for the file that is no image."""
    import pyarrow.parquet as parquet

    out = tmp_path_factory.mktemp("truth") / "vectors"
    embed_images(lost_run, folder, out, device="cpu", quiet=True, num_workers=0)
    rows = parquet.read_table(out / "vectors").to_pylist()
    return {row["path"]: row["vector"] for row in rows}


def assert_embedded(paths, vectors, errors, truth):
    assert len(paths) == len(vectors) == len(errors) > 0
    for path, vector, error in zip(paths, vectors, errors, strict=True):
        if path in truth and truth[path] is not None:
            np.testing.assert_allclose(vector, truth[path], atol=1e-5)
            assert error is None
        else:
            assert vector is None
            assert error


def test_vectors_are_those_of_weiss_embed_and_other_columns_stay(lost_run, folder, names, truth):
    embed = EmbedColumn(lost_run, root=folder, device="cpu")
    paths = [names[3], "class0/gone.jpg", *names, None]
    batch = pa.table({"path": pa.array(paths, pa.string()), "price": list(range(len(paths)))})
    found = embed(batch)
    assert found.column_names == ["path", "price", "vector", "error"]
    assert found.schema.field("vector").type == pa.list_(pa.float32(), embed.embedding_size)
    assert found.select(["path", "price"]).equals(batch)
    columns = [found.column(name).to_pylist() for name in ("path", "vector", "error")]
    assert_embedded(*columns, truth)
    assert columns[2][1].endswith("cannot be opened (No such file or directory)")
    assert columns[2][-1] == "is missing"
    empty = embed(batch.slice(0, 0))
    assert len(empty) == 0
    assert empty.schema == found.schema


def test_frames_as_spark_gives_them_and_plain_columns_of_bytes(lost_run, folder, names, truth):
    pandas = pytest.importorskip("pandas")
    contents = [(folder / name).read_bytes() for name in names]

    def embed_frames(frames):  # a function for mapInPandas
        embed = EmbedColumn(lost_run, "content", device="cpu")
        yield from map(embed, frames)

    missing = EmbedColumn(lost_run, root=folder, device="cpu")(pandas.DataFrame({"path": [None]}))
    assert list(missing.error) == ["is missing"]
    frame = pandas.DataFrame({"path": names, "content": contents})
    first, second = embed_frames(iter([frame[:5], frame[5:]]))
    found = pandas.concat([first, second])
    assert list(found.columns) == ["path", "content", "vector", "error"]
    arrow = pa.Table.from_pandas(found)  # as Spark reads it
    made = [arrow.column(name).to_pylist() for name in ("path", "vector", "error")]
    assert_embedded(*made, truth)
    columns = {"path": np.array(names), "content": np.array(contents, dtype=object)}
    (table,) = embed_frames([columns])
    assert_embedded(names, table["vector"].to_pylist(), table["error"].to_pylist(), truth)


@pytest.mark.parametrize("dtype", [object, "string", "str"])
def test_missing_values_of_every_type_of_text(lost_run, folder, names, truth, dtype):
    pandas = pytest.importorskip("pandas")
    embed = EmbedColumn(lost_run, root=folder, device="cpu")
    paths = pandas.Series([names[0], None, names[2], "gone.jpg"], dtype=dtype, index=[5, 5, 1, 0])
    found = embed(pandas.DataFrame({"path": paths}))
    assert list(found.index) == [5, 5, 1, 0]
    assert found.error.tolist()[:3] == [None, "is missing", None]
    assert_embedded([names[0], "", names[2], ""], found.vector, found.error, truth)
    assert list(embed(pandas.DataFrame({"path": paths[:0]})).columns) == ["path", *MADE]


def test_what_is_no_column_of_images_is_refused(lost_run):
    embed = EmbedColumn(lost_run, "image", device="cpu")
    with pytest.raises(ValueError, match="must have the column 'image'.*no column 'image'"):
        embed(pa.table({"path": ["a.jpg"]}))
    with pytest.raises(ValueError, match="none of vector, error; it has vector among"):
        embed(pa.table({"image": ["a.jpg"], "vector": [1]}))
    with pytest.raises(ValueError, match="paths or the bytes of image files; it holds int"):
        embed(pa.table({"image": [1, 2]}))
