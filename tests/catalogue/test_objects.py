"""Indexes and embeddings of images in object storage: in memory, and in an S3 server."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest
from glyph_catalogue import add, build, names_of, opened, photos, remove
from tiny import begin, environment, wait_until, weiss

from weiss.catalogue import EmbedColumn, add_items, build_index, embed_images

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def folder(tmp_path):
    return photos(tmp_path / "photos", count=7)


@pytest.fixture
def stored(folder):
    """The photos, one of them damaged, at an address in memory."""
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    (folder / "class1" / "bad.jpg").write_bytes(b"no image")
    for path in folder.rglob("*.jpg"):
        storage.pipe(f"bucket/photos/{path.relative_to(folder).as_posix()}", path.read_bytes())
    yield "memory://bucket/photos"
    storage.store.clear()


def assert_same_index(one, two):
    one, two = opened(one), opened(two)
    assert names_of(one) == names_of(two)
    for id in range(len(one)):
        np.testing.assert_allclose(one.vector(id), two.vector(id), atol=1e-6)
        assert one.thumbnail(id) == two.thumbnail(id)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_index_of_objects_is_that_of_files(lost_run, folder, stored, tmp_path, num_workers):
    build(lost_run, folder, tmp_path / "here")
    options = {"device": "cpu", "quiet": True, "num_workers": num_workers}
    build_index(lost_run, stored, tmp_path / "there", **options)
    assert_same_index(tmp_path / "here", tmp_path / "there")
    for name in ("here", "there"):
        assert (tmp_path / name / "skipped.txt").read_text().startswith("class1/bad.jpg: ")
    assert b"bucket" not in b"".join(p.read_bytes() for p in (tmp_path / "there").glob("*.json"))


def test_loose_objects_are_added_and_embedded_by_name(lost_run, folder, stored, tmp_path):
    build(lost_run, stored, tmp_path / "index")
    memory = fsspec.filesystem("memory")
    memory.pipe("more/new.jpg", (folder / "class0" / "3.jpg").read_bytes())
    change = add_items(
        tmp_path / "index", "memory://more", class_name="class9", device="cpu", quiet=True
    )
    assert (change.num_added, change.num_items) == (1, 8)
    assert names_of(opened(tmp_path / "index"))["class9/new.jpg"] == 7
    memory.pipe("more/deep/new.jpg", b"")
    with pytest.raises(ValueError, match="not both"):
        add_items(tmp_path / "index", "memory://more", device="cpu", quiet=True)


def test_what_an_index_of_objects_has_is_left_alone(lost_run, folder, stored, tmp_path):
    memory, index = fsspec.filesystem("memory"), tmp_path / "index"
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[0-9].jpg"))
    rows = "\n".join(f"{stored}/{name},{name[:6]},{n}" for n, name in enumerate(names))
    memory.pipe("bucket/photos/list.csv", f"path,label,price\n{rows}\n".encode())
    given = f"{stored}/list.csv"
    build(lost_run, given, index)
    with pytest.raises(ValueError, match="all 7 items of list are in the index already"):
        add(index, given)
    for data in (given, stored):
        remove(index, names[2])
        change = add(index, data)
        assert (change.num_added, set(change.already)) == (1, {*names} - {names[2]})
    # One has gone and one is new: what the index has stays, and what is missing is listed.
    memory.rm("bucket/photos/class0/0.jpg")
    remove(index, names[2])
    change = add(index, given)
    assert (change.num_added, len(change.already)) == (1, 5)
    assert change.skipped == ("class0/0.jpg: does not exist",)
    memory.pipe(f"bucket/photos/{names[1]}", (folder / names[2]).read_bytes())
    with pytest.raises(ValueError, match=f"1 have another content: {names[1]}"):
        add(index, given)


def test_embeddings_of_a_list_there_continue_and_notice_other_objects(
    lost_run, folder, stored, tmp_path
):
    parquet = pytest.importorskip("pyarrow.parquet")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    rows = "\n".join(f"{stored}/{name},{name[:6]},{len(name)}" for name in [*names, "gone.jpg"])
    memory = fsspec.filesystem("memory")
    memory.pipe("bucket/photos/list.csv", f"path,label,price\n{rows}\n".encode())

    def embed(data, out):
        options = {"device": "cpu", "quiet": True, "num_workers": 0, "shard_items": 3}
        return embed_images(lost_run, data, tmp_path / out, **options)

    there = embed(f"{stored}/list.csv", "there")
    assert [name for name, _ in there.skipped] == ["class1/bad.jpg", "gone.jpg"]
    assert dict(there.skipped)["gone.jpg"] == "does not exist"
    here = embed(folder, "here")
    vectors = [
        {r["path"]: r["vector"] for r in parquet.read_table(tmp_path / n / "vectors").to_pylist()}
        for n in ("here", "there")
    ]
    assert here.num_items == 8
    for name in names:
        if name != "class1/bad.jpg":
            np.testing.assert_allclose(vectors[0][name], vectors[1][name], atol=1e-6)
    first = tmp_path / "there" / "vectors" / "vectors-000000.parquet"
    kept = first.stat().st_ino
    (tmp_path / "there" / "vectors" / "vectors-000001.parquet").unlink()
    assert embed(f"{stored}/list.csv", "there").num_items == 9
    assert first.stat().st_ino == kept
    embed(stored, "folder")
    memory.pipe("bucket/photos/class0/0.jpg", (folder / "class0" / "3.jpg").read_bytes())
    with pytest.raises(ValueError, match="these differ: the images"):
        embed(stored, "folder")


def test_a_list_there_is_fetched_once(lost_run, folder, stored, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    memory, asked = fsspec.filesystem("memory"), []
    rows = "\n".join(f"class{n % 3}/{n}.jpg,class{n % 3},{n}" for n in range(3))
    memory.pipe("bucket/photos/list.csv", f"path,label,price\n{rows}\n".encode())
    read = type(memory).open

    def changing(self, path, *rest, **options):
        if path.endswith(".csv"):
            asked.append(path)
            if len(asked) > 1:  # somebody has written it anew
                self.store["/bucket/photos/list.csv"].truncate(len("path,label,price\n"))
        return read(self, path, *rest, **options)

    monkeypatch.setattr(type(memory), "open", changing)
    build(lost_run, f"{stored}/list.csv", tmp_path / "index")
    assert len(asked) == 1
    assert opened(tmp_path / "index").item(2).columns == {"price": 2}
    asked.clear()
    found = embed_images(lost_run, f"{stored}/list.csv", tmp_path / "out", device="cpu", quiet=True)
    assert (len(asked), found.num_items) == (1, 3)
    assert "columns: price" in found.lines


def test_credentials_that_end_stop_the_command_and_the_next_one_continues(
    lost_run, folder, stored, tmp_path, monkeypatch
):
    pytest.importorskip("pyarrow")
    storage = type(fsspec.filesystem("memory"))
    read, asked = storage.cat_file, []

    def expiring(self, path, *rest, **options):
        asked.append(path)
        if len(asked) == 7:
            raise PermissionError("The provided token has expired.")
        return read(self, path, *rest, **options)

    def embed(out):
        options = {"device": "cpu", "quiet": True, "num_workers": 0, "shard_items": 3}
        return embed_images(lost_run, stored, tmp_path / out, **options)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "cat_file", expiring)
        with pytest.raises(ConnectionError, match="expired"):
            embed("vectors")
    kept = sorted((tmp_path / "vectors" / "vectors").glob("[!.]*"))
    assert 0 < len(kept) < 3
    assert [name for name, _ in embed("vectors").skipped] == ["class1/bad.jpg"]
    assert set(kept) < set((tmp_path / "vectors" / "vectors").glob("[!.]*"))


def test_a_column_of_addresses(lost_run, folder, stored):
    pa = pytest.importorskip("pyarrow")
    here = EmbedColumn(lost_run, root=folder, device="cpu")
    there = EmbedColumn(lost_run, root="memory://bucket", device="cpu")
    names = ["class0/0.jpg", "class1/bad.jpg", "class2/2.jpg"]
    wanted = here(pa.table({"path": names}))
    found = there(pa.table({"path": [f"{stored}/{name}" for name in names]}))
    assert found.column("vector").equals(wanted.column("vector"))
    assert [error is None for error in found.column("error").to_pylist()] == [True, False, True]


def test_a_name_that_is_none_there_is_the_error_of_its_row(lost_run, stored):
    pytest.importorskip("pyarrow")
    embed = EmbedColumn(lost_run, root=f"{stored}/", device="cpu")
    wrong = ["", "../x.jpg", "/etc/passwd", "class0//0.jpg", "memory://other/0.jpg", "a\0.jpg"]
    paths = ["class0/0.jpg", *wrong, "gone.jpg", f"{stored}/class1/1.jpg"]
    found = embed({"path": paths})
    errors = found.column("error").to_pylist()
    assert [bool(error) for error in errors] == [False, *[True] * 7, False]
    assert all(f"must lie below {stored}/" in error for error in errors[1:-2])
    assert errors[-2] == "does not exist"
    assert [vector is None for vector in found.column("vector").to_pylist()] == [*map(bool, errors)]


@pytest.fixture(scope="module")
def s3():
    """The environment by which commands reach an S3 server of this machine, and its storage."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = begin(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0 or server.poll() is not None

    wait_until(answers)
    assert server.poll() is None
    known = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    known |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    storage = fsspec.filesystem(
        "s3", key="test", secret="test", endpoint_url=known["AWS_ENDPOINT_URL"]
    )
    storage.mkdir("bucket")
    yield environment(**known), storage
    server.kill()
    server.wait()


@pytest.mark.slow
@pytest.mark.dist
def test_commands_read_from_a_server_of_s3(s3, lost_run, folder, tmp_path):
    env, storage = s3
    for path in folder.rglob("*.jpg"):
        storage.pipe(f"bucket/photos/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def run(*words):
        done = weiss(*words, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    address, options = "s3://bucket/photos", ("--device", "cpu")
    run("index", lost_run, address, "--out", tmp_path / "there", *options)
    build(lost_run, folder, tmp_path / "here")
    assert_same_index(tmp_path / "here", tmp_path / "there")
    assert "7 images" in run("embed", lost_run, address, "--out", tmp_path / "vectors", *options)
    run("index", tmp_path / "vectors", "--out", tmp_path / "again")
    assert_same_index(tmp_path / "here", tmp_path / "again")
    settings = ["backbone.name=small", "backbone.weights=none", "train.epochs=1"]
    settings += ["train.device=cpu", "data.split=all", "data.num_workers=0", "train.batch_size=4"]
    changes = [word for each in settings for word in ("--set", each)]
    run("train", address, "--full", "--out", tmp_path / "run", "--quiet", *changes)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"]
    env = env | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    failed = weiss("index", lost_run, address, "--out", tmp_path / "no", *options, env=env)
    assert failed.returncode == 2
    assert "the storage of s3://bucket/photos must answer" in failed.stderr
