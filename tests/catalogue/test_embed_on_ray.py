"""Embedding on a real Ray cluster on this machine, parts of which are killed.

make test-ray
"""

import sys
from contextlib import ExitStack

import numpy as np
import pytest
from glyph_catalogue import photos
from raylets import said_by
from tiny import wait_until

from weiss._base.files import alone
from weiss.catalogue import EmbedColumn, embed_images, embed_on_ray
from weiss.catalogue.embed_on_ray import (
    FILE,
    NUMBER,
    ShardWriter,
    free_shards,
    options_of_network,
)
from weiss.catalogue.embeddings_folder import EmbeddingsFolder

parquet = pytest.importorskip("pyarrow.parquet")
needs_ray = [pytest.mark.ray, pytest.mark.dist, pytest.mark.filterwarnings("default")]
ACTOR = "MapWorker(MapBatches(ShardWriter))"


def test_a_network_gets_a_gpu_and_its_share_of_the_cores():
    gpus, none = {"CPU": 32.0, "GPU": 4.0}, {"CPU": 64.0}
    assert options_of_network({}, "auto", [none]) == {"num_gpus": 0.0, "num_cpus": 1}
    assert options_of_network({}, "auto", [none, gpus]) == {"num_gpus": 1.0, "num_cpus": 8}
    assert options_of_network({}, "cpu", [gpus]) == {"num_gpus": 0.0, "num_cpus": 1}
    given = {"gpus": 0.5, "cpus": 3, "memory": 2}
    found = options_of_network(given, "cuda", [gpus])
    assert found == {"num_gpus": 0.5, "num_cpus": 3, "memory": 2_000_000_000}


def test_a_machine_that_sees_no_folder_or_no_images_does_nothing(lost_run, tmp_path):
    import pyarrow as pa

    folder, out = photos(tmp_path / "photos"), tmp_path / "vectors"
    with pytest.raises(RuntimeError, match=r"one folder for all machines .* does not see"):
        ShardWriter(str(out), str(folder), "cpu", 1, trust=False)
    embed_images(lost_run, folder, out, device="cpu", quiet=True, num_workers=0, shard_items=3)
    first = EmbeddingsFolder(out).shard(0)
    whole = parquet.read_table(first)
    first.unlink()
    files = whole.column("path")
    block = whole.select(["path", "label"]).append_column(FILE, files)
    block = block.append_column(NUMBER, pa.array([0] * len(block)))
    with pytest.raises(RuntimeError, match="sees none of 3 in"):
        ShardWriter(str(out), str(tmp_path / "elsewhere"), "cpu", 1, trust=False)(block)
    assert not first.exists()
    write = ShardWriter(str(out), str(folder), "cpu", 1, trust=False)
    assert write(block).to_pylist() == [{"number": 0, "rows": 3}]
    assert write(block).to_pylist() == [{"number": 0, "rows": 0}]
    assert parquet.read_table(first).equals(whole)


def test_shards_that_others_hold_or_have_finished_are_not_free(lost_run, tmp_path):
    folder, out = photos(tmp_path / "photos"), EmbeddingsFolder(tmp_path / "vectors")
    options = {"device": "cpu", "quiet": True, "num_workers": 0, "shard_items": 1}
    embed_images(lost_run, folder, out.folder, **options)
    for number in (1, 3, 4):
        out.shard(number).unlink()
    with alone(out.shard(3)):
        assert free_shards(out, range(6)) == [1, 4]
    assert free_shards(out, range(6)) == [1, 3, 4]
    assert not list(out.folder.rglob("*.lock"))


def test_what_ray_decides_or_cannot_have_is_refused(lost_run, tmp_path):
    folder, out = photos(tmp_path / "photos"), tmp_path / "vectors"
    for options, words in (
        ({"cluster": "localhost"}, "--cluster must be auto or ray://HOST:PORT"),
        ({"cluster": "auto", "needs": {"cores": 1}}, "--needs"),
        ({"cluster": "auto", "num_workers": 2}, "must be left out with --cluster"),
        ({"needs": {"cpus": 1}}, "--needs must come with --cluster"),
    ):
        with pytest.raises(ValueError, match=words):
            embed_images(lost_run, folder, out, quiet=True, **options)
    with pytest.raises(ValueError, match="the images must be files; those of glyphs"):
        embed_images(lost_run, "glyphs", out, device="cpu", quiet=True, cluster="auto")
    assert not out.exists()


def shards(out):
    return sorted((out / "vectors").glob("vectors-*.parquet"))


def assert_same(out, truth):
    """Assert that two folders have the same rows, vectors up to rounding."""
    assert [path.name for path in shards(out)] == [path.name for path in shards(truth)]
    for one, two in zip(shards(out), shards(truth), strict=True):
        found, wanted = parquet.read_table(one), parquet.read_table(two)
        assert found.schema.equals(wanted.schema, check_metadata=True)
        assert found.drop_columns(["vector"]).equals(wanted.drop_columns(["vector"]))
        vectors = [np.array(each["vector"].to_pylist()) for each in (found, wanted)]
        np.testing.assert_allclose(*vectors, atol=1e-5)
    assert not list(out.rglob("*.lock"))


@pytest.fixture(scope="module")
def truth(lost_run, glyph_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("truth") / "vectors"
    options = {"device": "cpu", "quiet": True, "num_workers": 0, "shard_items": 2}
    embed_images(lost_run, glyph_folder, out, **options)
    return out


class TestWithACluster:
    pytestmark = needs_ray

    @pytest.fixture(autouse=True)
    def _begin(self, cluster, lost_run, glyph_folder):
        self.words = [sys.executable, "-m", "weiss", "embed", str(lost_run), str(glyph_folder)]
        self.cluster = cluster

    def begin(self, out, address="auto"):
        """Start a command whose 160 shards take seconds."""
        options = ["--out", str(out), "--shard-items", "2", "--device", "cpu"]
        options += ["--cluster", address] if address else []
        return self.cluster.begin([*self.words, *options])

    def begin_and_wait(self, out, is_ready=lambda: True):
        process = self.begin(out)
        wait_until(lambda: (len(shards(out)) > 5 and is_ready()) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process, {path: path.stat().st_ino for path in shards(out)}

    def assert_kept(self, before):
        assert {path: path.stat().st_ino for path in before} == before

    @pytest.mark.parametrize("how", ["auto", "ray://"])
    def test_the_shards_are_those_of_one_process(self, tmp_path, truth, how):
        address = how if how == "auto" else f"ray://127.0.0.1:{self.cluster.client_port}"
        said = said_by(self.begin(tmp_path / "vectors", address))
        assert_same(tmp_path / "vectors", truth)
        assert "320 images in 160 shards" in said

    def test_a_killed_worker_loses_its_shard_alone(self, tmp_path, truth):
        out = tmp_path / "vectors"
        process, before = self.begin_and_wait(out)
        self.cluster.worker_on(ACTOR).kill()
        said_by(process)
        assert_same(out, truth)
        self.assert_kept(before)

    def test_a_killed_machine_loses_its_shards_alone(self, tmp_path, truth):
        out, raylet = tmp_path / "vectors", self.cluster.other_raylet
        process, before = self.begin_and_wait(
            out, lambda: self.cluster.worker_on(ACTOR, raylet.pid) is not None
        )
        self.cluster.kill_other()
        said_by(process)
        assert_same(out, truth)
        self.assert_kept(before)

    def test_a_killed_command_is_continued_by_the_next(self, tmp_path, truth):
        out = tmp_path / "vectors"
        process, before = self.begin_and_wait(out)
        process.kill()
        process.communicate()
        # At once, while its actors may still work.
        said_by(self.begin(out))
        assert_same(out, truth)
        self.assert_kept(before)

    def test_a_cluster_and_a_process_share_a_folder(self, tmp_path, truth):
        out = tmp_path / "vectors"
        process, before = self.begin_and_wait(out)
        said_by(self.begin(out, ""))
        said_by(process)
        assert_same(out, truth)
        self.assert_kept(before)

    def test_no_network_is_loaded_for_shards_that_others_hold(
        self, lost_run, glyph_folder, tmp_path, monkeypatch
    ):
        out = EmbeddingsFolder(tmp_path / "vectors")
        options = {"device": "cpu", "quiet": True, "shard_items": 100}
        embed_images(lost_run, glyph_folder, out.folder, num_workers=0, **options)
        for number in (0, 2):
            out.shard(number).unlink()
        monkeypatch.setenv("RAY_ADDRESS", self.cluster.address)
        embedded, look, rounds, looks = embed_on_ray._embedded, free_shards, [], []

        def counted(place, blocks, *rest):
            rounds.append([block.column(NUMBER)[0].as_py() for block in blocks])
            return embedded(place, blocks, *rest)

        def looked(*given):
            found = look(*given)
            looks.append(found)
            if looks[-2:] == [[], []]:
                other.close()  # who held it has died
            return found

        monkeypatch.setattr(embed_on_ray, "_embedded", counted)
        monkeypatch.setattr(embed_on_ray, "free_shards", looked)
        with ExitStack() as other:
            other.enter_context(alone(out.shard(0)))
            embed_images(lost_run, glyph_folder, out.folder, cluster="auto", **options)
        assert rounds == [[2], [0]]
        assert out.missing(out.contents()) == []

    def test_a_machine_that_sees_no_images_stops_the_command(
        self, lost_run, glyph_folder, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("RAY_ADDRESS", self.cluster.address)
        monkeypatch.setattr(embed_on_ray, "_root", lambda collection: "/nowhere")
        options = {"device": "cpu", "quiet": True, "cluster": "auto", "shard_items": 100}
        with pytest.raises(RuntimeError, match="RuntimeError: the images must be seen by all"):
            embed_images(lost_run, glyph_folder, tmp_path / "vectors", **options)
        assert shards(tmp_path / "vectors") == []

    @pytest.mark.parametrize("what", ["files", "parquet"])
    def test_in_a_pipeline_of_ones_own(
        self, lost_run, glyph_folder, truth, tmp_path, monkeypatch, what
    ):
        import pyarrow as pa
        import ray

        monkeypatch.setenv("RAY_ADDRESS", self.cluster.address)
        names = [row["path"] for p in shards(truth) for row in parquet.read_table(p).to_pylist()]
        ray.init(address="auto", log_to_driver=False)
        try:
            if what == "files":
                data = ray.data.read_binary_files(str(glyph_folder), include_paths=True)
                settings = {"column": "bytes"}
            else:
                parquet.write_table(pa.table({"path": names}), tmp_path / "list.parquet")
                data = ray.data.read_parquet(str(tmp_path / "list.parquet"))
                settings = {"column": "path", "root": str(glyph_folder)}
            embedded = data.map_batches(
                EmbedColumn,
                fn_constructor_args=(str(lost_run),),
                fn_constructor_kwargs={**settings, "device": "cpu"},
                batch_size=64,
                batch_format="pyarrow",
                concurrency=1,
            )
            embedded.write_parquet(str(tmp_path / "out"))
        finally:
            ray.shutdown()
        found = parquet.read_table(tmp_path / "out").to_pylist()
        wanted = {
            row["path"]: row["vector"]
            for path in shards(truth)
            for row in parquet.read_table(path).to_pylist()
        }
        assert len(found) == len(wanted) == 320
        for row in found:
            name = row["path"].removeprefix(f"{glyph_folder}/")
            np.testing.assert_allclose(row["vector"], wanted[name], atol=1e-5)
            assert row["error"] is None
