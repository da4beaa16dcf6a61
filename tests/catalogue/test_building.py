"""Making, adding and removing: what is embedded, what is skipped, what a crash leaves behind."""

import io
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from glyph_catalogue import (
    add,
    build,
    built,
    full_disk,
    names_of,
    opened,
    photos,
    remove,
    with_other_weights,
    without_data,
    write_glyphs,
    write_photo,
)
from PIL import EpsImagePlugin, Image
from tiny import begin, tiny_recipe, wait_until, write_stripes

from weiss._base.images import BadImageError, decode, stored_size
from weiss.catalogue import (
    DamagedIndexError,
    OtherModelError,
    UnknownItemError,
    build_index,
    building,
    calibration,
    embedding,
)
from weiss.catalogue.building import without_places
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.networks import network_of_run, without_folders
from weiss.data import Assembly, CentreCrop, Pipeline, Table, open_table
from weiss.data.sources import HubImages
from weiss.runs import Run
from weiss.training import measure_untrained


def expected(run, table):
    """Embed a table as an evaluation does."""
    model = Run(run).model()
    pipeline = Pipeline(table, keep="memory", num_workers=0)
    crop = CentreCrop(model.input.size, model.input.resize)
    batches = pipeline.evaluation(crop, batch_size=7)
    return np.concatenate([model(batch.images).detach().numpy() for batch in batches])


def test_an_item_has_the_vector_that_an_evaluation_gives_it(glyph_run, glyph_folder, catalogue):
    table = open_table(glyph_folder, how=Assembly(split="all"))
    vectors, ids = expected(glyph_run, table), names_of(catalogue)
    for row in range(0, len(table), 37):
        found = catalogue.vector(ids[table.source.name(row)])
        np.testing.assert_allclose(found, vectors[row], atol=1e-5)


def test_photos_of_any_size_are_cropped_as_in_an_evaluation(lost_run, tmp_path):
    folder = photos(tmp_path / "photos")
    write_photo(folder / "class0" / "tall.jpg", 50, width=90, height=400)
    write_photo(folder / "class0" / "tiny.png", 51, width=20, height=30)
    found = built(lost_run, folder, tmp_path / "index")
    table = open_table(folder, how=Assembly(split="all"))
    for row, vector in enumerate(expected(lost_run, table)):
        # And a query of the same file is the item itself.
        name = table.source.name(row)
        hit = found.search(found.embed([decode(folder / name)]), 1)[0][0]
        assert hit.item.name == name
        assert hit.similarity == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(found.vector(hit.item.id), vector, atol=1e-5)


def test_decoding_processes_change_nothing(lost_run, glyph_folder, glyph_index, tmp_path):
    build_index(lost_run, glyph_folder, tmp_path / "index", device="cpu", num_workers=2, quiet=True)
    one, two = opened(glyph_index), opened(tmp_path / "index")
    assert names_of(one) == names_of(two)
    for id in range(0, 320, 29):
        np.testing.assert_allclose(one.vector(id), two.vector(id), atol=1e-6)
        assert one.thumbnail(id) == two.thumbnail(id)


def test_small_pictures_are_small_and_never_enlarged(lost_run, tmp_path):
    folder = tmp_path / "photos"
    sizes = {"wide": (400, 100), "tall": (100, 900), "tiny": (20, 30), "middle": (100, 120)}
    for number, (name, (width, height)) in enumerate(sizes.items()):
        write_photo(folder / "all" / f"{name}.png", number, width, height)
    found = built(lost_run, folder, tmp_path / "index")
    for name, id in names_of(found).items():
        picture = Image.open(io.BytesIO(found.thumbnail(id)))
        width, height = sizes[Path(name).stem]
        scale = min(160 / max(width, height), 1)
        assert picture.width == pytest.approx(width * scale, abs=1)
        assert picture.height == pytest.approx(height * scale, abs=1)
        assert found.thumbnail_type(id) == f"image/{picture.format.lower()}"
        assert picture.format == ("PNG" if "tiny" in name else "JPEG")
    tiny = names_of(found)["all/tiny.png"]
    kept = np.asarray(Image.open(io.BytesIO(found.thumbnail(tiny))))
    np.testing.assert_array_equal(kept, np.asarray(Image.open(folder / "all" / "tiny.png")))


def test_a_folder_without_classes_is_a_collection_too(lost_run, tmp_path):
    for number in range(3):
        write_photo(tmp_path / "flat" / f"{number}.jpg", number)
    found = built(lost_run, tmp_path / "flat", tmp_path / "index")
    assert [item.class_names for item in found.items_of(None, 0, 9)] == [(), (), ()]
    assert found.classes() == []
    assert found.name == "flat"
    with pytest.raises(ValueError, match="--split must be left out"):
        build(lost_run, tmp_path / "flat", tmp_path / "index", split="test", replace_old=True)


def test_names_never_lead_out_of_the_collection(lost_run, tmp_path):
    for name in ("inside/a.jpg", "outside/b.jpg", "outside/c.jpg", "inside/c.jpg"):
        write_photo(tmp_path / name, len(name))
    rows = [
        ("a.jpg", "one"),
        ("../outside/b.jpg", "one|two"),
        (str(tmp_path / "outside" / "c.jpg"), "two"),
        (str(tmp_path / "inside" / "c.jpg"), "two"),
    ]
    lines = ["path,labels", *(f"{path},{labels}" for path, labels in rows)]
    (tmp_path / "inside" / "list.csv").write_text("\n".join(lines))
    found = built(lost_run, tmp_path / "inside" / "list.csv", tmp_path / "index")
    items = found.items_of(None, 0, 9)
    assert [item.name for item in items] == ["a.jpg", "outside/b.jpg", "c.jpg", "c.jpg (2)"]
    assert [item.class_names for item in items] == [("one",), ("one", "two"), ("two",), ("two",)]
    assert found.classes() == [("one", 2), ("two", 3)]


def test_the_index_needs_its_run_no_more_and_holds_a_run_of_its_own(glyph_run, glyph_index):
    manifest = IndexFolder(glyph_index).manifest()
    copy = Run(glyph_index / manifest.model["folder"])
    own, theirs = copy.model().state_dict(), Run(glyph_run).model().state_dict()
    assert all((own[name] == theirs[name]).all() for name in theirs)
    assert (copy.loss().fields == Run(glyph_run).loss().fields).all()
    assert copy.is_finished()
    assert "small for glyphs" in (copy.folder / "card.md").read_text()


def test_the_card_names_collection_model_scores_store_and_threshold(glyph_index, catalogue):
    card = (glyph_index / "card.md").read_text()
    for words in ("# Index of characters", "320 images of 40 classes", "faiss flat", "MAP@R"):
        assert words in card
    assert f"{catalogue.threshold.similarity:.3f}" in card
    assert catalogue.threshold.basis in card


def test_what_is_added_is_found_and_ids_are_never_used_again(index, tmp_path):
    more = write_glyphs(tmp_path / "more", num_classes=3, per_class=4, first=40)
    before = names_of(opened(index))
    done = add(index, more)
    assert (done.num_added, done.num_items) == (12, 332)
    found = opened(index)
    new = {name: id for name, id in names_of(found).items() if name not in before}
    assert sorted(new.values()) == list(range(320, 332))
    assert {name: names_of(found)[name] for name in before} == before
    for id in new.values():
        assert found.search(found.vector(id)[None], 1)[0][0].similarity > 0.9999
    last = next(name for name, id in new.items() if id == 331)
    remove(index, last)
    add(index, more)
    assert names_of(opened(index))[last] == 332
    assert len(opened(index)) == 332


def test_the_same_content_is_left_alone_and_another_is_refused(index, glyph_folder, tmp_path):
    with pytest.raises(ValueError, match="all 320 items of characters are in the index already"):
        add(index, glyph_folder)
    other = write_glyphs(tmp_path / "other", num_classes=2, per_class=2)
    write_photo(other / "U+0021" / "new.png", 1)
    done = add(index, other)
    assert (done.num_added, len(done.already)) == (1, 4)
    before = (index / "index.json").read_bytes()
    write_photo(other / "U+0021" / "0.png", 7)
    with pytest.raises(ValueError, match="1 have another content: U\\+0021/0.png"):
        add(index, other)
    assert (index / "index.json").read_bytes() == before


def test_items_go_by_name_by_id_and_by_class(index):
    remove(index, "U+0041/0.png", "5", "class:U+0043")
    found = opened(index)
    names = names_of(found)
    assert len(found) == 310
    assert "U+0041/0.png" not in names
    assert 5 not in names.values()
    assert "U+0043" not in dict(found.classes())
    assert len(found.search(np.eye(1, 32, dtype=np.float32), 400)[0]) == 310
    assert set(found.map().ids) == set(names.values())


def test_what_is_not_there_cannot_be_removed_and_nothing_is(index, monkeypatch):
    before = (index / "index.json").read_bytes()
    for what in ("U+0041/9.png", "320", "class:nothing", "-1"):
        with pytest.raises(UnknownItemError, match="is neither a name, nor an id"):
            remove(index, "U+0041/0.png", what)
    with pytest.raises(UnknownItemError, match="Did you mean 'U\\+0041/0.png'?"):
        remove(index, "U+0041/0.pngg")
    monkeypatch.setattr(building, "MOST_NAMES", 100)  # of more names no similar one is searched for
    with pytest.raises(UnknownItemError) as refused:
        remove(index, "U+0041/0.pngg")
    assert "Did you mean" not in str(refused.value)
    with pytest.raises(ValueError, match="an index must keep an item; these are all 320"):
        remove(index, *range(320))
    assert (index / "index.json").read_bytes() == before


def test_another_model_cannot_add(index, glyph_run, glyph_folder, tmp_path):
    more = write_glyphs(tmp_path / "more", num_classes=1, per_class=2, first=41)
    other = with_other_weights(glyph_run, tmp_path / "other")
    with pytest.raises(OtherModelError, match="other is another than the one that"):
        add(index, more, run=other)
    assert add(index, more, run=glyph_run).num_added == 2


def test_an_index_is_replaced_only_when_asked(index, lost_run, tmp_path):
    folder = photos(tmp_path / "photos")
    with pytest.raises(ValueError, match="must not hold an index yet; it does. Add to it"):
        build(lost_run, folder, index)
    old = opened(index)
    build(lost_run, folder, index, replace_old=True)
    assert len(opened(index)) == 6
    assert min(names_of(opened(index)).values()) == 320  # ids go on
    assert old.search(old.vector(3)[None], 1)[0][0].item.id == 3


@pytest.mark.parametrize("damaged", ["index.json", "vectors-*.npy"])
def test_a_damaged_index_can_be_made_again_in_its_place(index, lost_run, tmp_path, damaged):
    path = next(index.glob(damaged))
    path.write_bytes(path.read_bytes()[:50])
    folder = photos(tmp_path / "photos")
    with pytest.raises(DamagedIndexError, match="--replace"):
        add(index, folder)
    build(lost_run, folder, index, replace_old=True)
    assert len(opened(index)) == 6


def test_a_threshold_needs_classes_that_never_trained(glyph_run, tmp_path):
    trained = Run(glyph_run).model_facts()["class_names"]
    folder = write_glyphs(tmp_path / "seen", num_classes=2, per_class=2, split="train")
    for path in list(folder.iterdir()):
        full = next(name for name in trained if name.startswith(f"{path.name} "))
        if "/" not in full:
            path.rename(folder / full)
    done = build(glyph_run, folder, tmp_path / "index")
    # The run's own test characters stand in.
    found = opened(tmp_path / "index")
    assert "481 classes of the run's own test data that never trained" in found.threshold.basis
    # The index does not have these data: what they said stays.
    remove(tmp_path / "index", 0)
    assert opened(tmp_path / "index").threshold == found.threshold
    assert any("a match from similarity" in line for line in done.lines)


def test_a_photo_in_two_classes_does_not_set_the_threshold(lost_run, tmp_path):
    folder, index = photos(tmp_path / "photos", count=18), tmp_path / "index"
    before = built(lost_run, folder, index).threshold
    for number in (3, 6):  # of class0
        shutil.copy(folder / f"class0/{number}.jpg", folder / f"class1/again{number}.jpg")
    shutil.copy(folder / "class2/2.jpg", folder / "class2/again.jpg")  # of one class: no matter
    done = build(lost_run, folder, index, replace_old=True)
    after = opened(index).threshold
    assert after.similarity == pytest.approx(before.similarity, abs=0.05)
    assert after.true_match_rate > 0
    assert "against 17 items" in after.basis  # 18 and three copies, less two and two
    (line,) = [line for line in done.lines if "more than one class" in line]
    assert line == (
        "2 photos are in more than one class; the threshold ignores them: class0/3.jpg = "
        "class1/again3.jpg, class0/6.jpg = class1/again6.jpg"
    )
    # Removing one of the copies settles it.
    done = remove(index, "class1/again3.jpg")
    assert any(line.startswith("1 photo is in more than one class") for line in done.lines)
    done = remove(index, "class1/again6.jpg")
    assert not any("more than one class" in line for line in done.lines)


def test_photos_in_two_classes_of_the_test_data_do_not_set_it_either(glyph_run, tmp_path):
    run = without_data(glyph_run, tmp_path / "run")
    recipe = (run / "recipe.toml").read_text()
    # Characters of some scripts look the same in some fonts.
    (run / "recipe.toml").write_text(recipe.replace("/gone/glyphs", "glyphs_still"))
    build(run, photos(tmp_path / "photos", count=3), tmp_path / "index")
    basis = opened(tmp_path / "index").threshold.basis
    assert "classes of the run's own test data, without 5 photos in more than one class" in basis


def test_without_anything_held_out_there_is_no_threshold(lost_run, tmp_path):
    # Two classes have two photos, the third has one.
    done = build(lost_run, photos(tmp_path / "photos", count=5), tmp_path / "index")
    found = opened(tmp_path / "index")
    assert found.threshold is None
    assert "the run's own test data could not be opened" in found.facts["threshold_why"]
    assert found.search(found.vector(0)[None], 1)[0][0].is_match is None
    assert any(line.startswith("no threshold: 3 classes of 2 items") for line in done.lines)


def broken_off(monkeypatch, after):
    """Let embedding fail after this many pieces."""
    real, done = embedding.BatchEmbedder.embed, []

    def embed(self, store):
        if len(done) == after:
            raise RuntimeError("the power is gone")
        done.append(len(store.starts))
        return real(self, store)

    monkeypatch.setattr(embedding.BatchEmbedder, "embed", embed)
    return done


def test_a_change_that_fails_leaves_the_old_index_and_is_continued(index, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PIECE_ITEMS", 16)
    monkeypatch.setattr(embedding, "BLOCK_ITEMS", 32)
    more = write_glyphs(tmp_path / "more", num_classes=20, per_class=5, first=40)
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        broken_off(patched, after=5)
        with pytest.raises(RuntimeError, match="the power is gone"):
            add(index, more, batch_size=16)
    for path, content in before.items():
        assert path.read_bytes() == content
    assert len(opened(index)) == 320
    with monkeypatch.context() as patched:
        done = broken_off(patched, after=100)
        change = add(index, more, batch_size=16)
    assert sum(done) == 100 - 2 * 32  # two blocks were complete
    assert "images/s, 64 earlier" in change.lines[0]
    assert len(opened(index)) == 420
    assert not (index / ".building").exists()


def test_what_was_embedded_of_other_files_is_not_used(lost_run, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PIECE_ITEMS", 16)
    monkeypatch.setattr(embedding, "BLOCK_ITEMS", 16)
    folder = write_glyphs(tmp_path / "characters", num_classes=10, per_class=5)
    with monkeypatch.context() as patched:
        broken_off(patched, after=2)
        with pytest.raises(RuntimeError, match="power"):
            build(lost_run, folder, tmp_path / "index", batch_size=16)
    write_photo(folder / "U+0021" / "0.png", 5)
    (tmp_path / "index" / ".building" / "block-000001.npz").write_bytes(b"half")
    with monkeypatch.context() as patched:
        done = broken_off(patched, after=100)
        build(lost_run, folder, tmp_path / "index", batch_size=16)
    assert sum(done) == 50


def test_a_run_that_trains_meanwhile_does_not_change_the_model(lost_run, tmp_path, monkeypatch):
    run, real = shutil.copytree(lost_run, tmp_path / "run"), building.embed_collection

    def slowly(*given, **options):
        better = with_other_weights(lost_run, tmp_path / "better")
        shutil.copy(better / "model.safetensors", run)
        return real(*given, **options)

    def embed_runs(runs, **options):
        asked.append((network_of_run(runs[0]).fingerprint, options["overrides"]["data.name"]))
        raise OSError

    asked = []
    monkeypatch.setattr(building, "embed_collection", slowly)
    monkeypatch.setattr(calibration, "embed_runs", embed_runs)
    found = built(run, photos(tmp_path / "photos", 3), tmp_path / "index")
    assert asked == [(found.facts["model"]["fingerprint"], "/gone/glyphs")]


KILLED = """
import sys
from weiss.catalogue import build_index, embedding
embedding.PIECE_ITEMS, embedding.BLOCK_ITEMS = 64, 64
build_index(sys.argv[1], sys.argv[2], sys.argv[3], batch_size=64, device="cpu", num_workers=0)
"""


def test_after_a_killed_process_the_next_one_continues_to_the_same_index(
    glyph_run, glyph_folder, catalogue, tmp_path, monkeypatch
):
    command = [sys.executable, "-c", KILLED, str(glyph_run), str(glyph_folder)]
    process = begin([*command, str(tmp_path / "killed")])
    blocks = tmp_path / "killed" / ".building"
    wait_until(lambda: (blocks / "block-000001.npz").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "index.json").exists()
    whole = len(list(blocks.glob("block-*.npz")))
    monkeypatch.setattr(embedding, "PIECE_ITEMS", 64)
    monkeypatch.setattr(embedding, "BLOCK_ITEMS", 64)
    with monkeypatch.context() as patched:
        done = broken_off(patched, after=100)
        build(glyph_run, glyph_folder, tmp_path / "killed", batch_size=64)
    assert sum(done) == 320 - 64 * whole
    continued = opened(tmp_path / "killed")
    assert names_of(continued) == names_of(catalogue)
    for id in range(320):
        np.testing.assert_allclose(continued.vector(id), catalogue.vector(id), atol=1e-5)
        assert continued.thumbnail(id) == catalogue.thumbnail(id)
    assert continued.threshold.basis == catalogue.threshold.basis


def test_a_part_of_a_named_data_set_can_be_indexed(glyph_run, tmp_path):
    with pytest.raises(ValueError, match="--split must be all or a part of glyphs .*'valid'"):
        build(glyph_run, "glyphs", tmp_path / "index", split="valid")
    with pytest.raises(ValueError, match="--store must be .*; got 'redis'"):
        build(glyph_run, "glyphs", tmp_path / "index", store="redis")
    with pytest.raises(ValueError, match="--kind must be one of"):
        build(glyph_run, "glyphs", tmp_path / "index", kind="tree")
    with pytest.raises(ValueError, match="--kind is for faiss.*'flat'"):
        build(glyph_run, "glyphs", tmp_path / "index", store="milvus:items.db", kind="flat")
    for rate in (0, 1):
        message = f"--false-match-rate must lie between 0 and 1; got {rate}"
        with pytest.raises(ValueError, match=message):
            build(glyph_run, "glyphs", tmp_path / "index", false_match_rate=rate)


def test_names_that_are_no_text_or_move_the_cursor_are_shown_as_text(lost_run, tmp_path):
    folder = tmp_path / os.fsdecode(b"dir\xff")
    classes = [os.fsdecode(b"caf\xe9"), os.fsdecode(b"caf\xe8"), "a\x1b[2J", "plain"]
    for number, name in enumerate(classes):
        write_photo(folder / name / os.fsdecode(b"%d\xfe\n.jpg" % number), number)
    (folder / "plain" / os.fsdecode(b"bad\xfe.jpg")).write_bytes(b"?")
    done = build(lost_run, folder, tmp_path / "index")
    found = opened(tmp_path / "index")
    assert found.name == "dir\ufffd"
    assert dict(found.classes()) == {
        "a\ufffd[2J": 1,
        "caf\ufffd": 1,
        "caf\ufffd (2)": 1,
        "plain": 1,
    }
    assert "plain/3\ufffd\ufffd.jpg" in names_of(found)
    assert done.skipped == ("plain/bad\ufffd.jpg: is no image that Pillow can read",)
    assert "Index of dir\ufffd" in (tmp_path / "index" / "card.md").read_text(encoding="utf-8")
    remove(tmp_path / "index", "class:caf\ufffd (2)")
    assert len(opened(tmp_path / "index")) == 3


def test_a_flat_folder_is_added_as_a_class_or_the_change_says_that_it_has_none(index, tmp_path):
    folder = tmp_path / "new"
    for number in (1, 2):
        write_photo(folder / f"{number}.jpg", number)
    (folder / "notes.txt").write_text("no image")
    added = add(index, folder, class_name="kiwi")
    assert any("1 .txt" in line for line in added.lines)
    assert not any("no class" in line for line in added.lines)
    names = [item.name for item in opened(index).items_of("kiwi", 0, 9)]
    assert names == ["kiwi/1.jpg", "kiwi/2.jpg"]
    assert any("no class" in line for line in add(index, folder).lines)
    with pytest.raises(KeyError, match="class:kiwi"):
        remove(index, "kiwi")
    assert remove(index, "class:kiwi").num_removed == 2
    with pytest.raises(ValueError, match="has its own"):
        add(index, tmp_path, class_name="kiwi")
    with pytest.raises(ValueError, match="empty name"):
        add(index, folder, class_name=" ")


def test_an_empty_subfolder_is_a_remark(lost_run, tmp_path):
    folder = photos(tmp_path / "photos")
    (folder / "nothing" / "deep").mkdir(parents=True)
    done = build(lost_run, folder, tmp_path / "index")
    assert done.num_items == 6
    assert done.skipped == ()
    assert "1 subfolders hold no images: nothing" in done.lines


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/notes.txt"], "must hold images .*there or in subfolders; it holds none"),
        (["cover.png", "2023/jan/1.png"], "or one subfolder for each class, not both.*2023"),
    ],
)
def test_a_folder_that_is_no_collection_is_told_so(lost_run, tmp_path, names, message):
    for name in names:
        write_photo(tmp_path / "photos" / f"{name}.png", 0).rename(tmp_path / "photos" / name)
    with pytest.raises(ValueError, match=message):
        build(lost_run, tmp_path / "photos", tmp_path / "index")


def test_a_program_that_calls_itself_an_image_starts_nothing(lost_run, tmp_path, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("it starts"))
    folder = photos(tmp_path / "photos")
    Image.new("RGB", (30, 30), "red").save(path := folder / "class0" / "evil.jpg", "EPS")
    done = build(lost_run, folder, tmp_path / "index")
    assert done.skipped == ("class0/evil.jpg: is no image that Pillow can read",)
    with pytest.raises(BadImageError, match="is no image"):
        decode(path)
    assert stored_size(path, None) == 0


def test_rows_of_a_hub_whose_pictures_changed_are_embedded_anew(lost_run, tmp_path, monkeypatch):
    def table(seed):
        noise = np.random.default_rng(seed).integers(0, 255, (6, 32, 32, 3), dtype=np.uint8)
        rows = [{"image": Image.fromarray(each)} for each in noise]
        return Table("hub", HubImages(rows, "image"), np.zeros(6, int), ("a",), np.full(6, "test"))

    with full_disk(monkeypatch):
        build(lost_run, table(0), tmp_path / "index")
    found = built(lost_run, table(1), tmp_path / "index")
    np.testing.assert_allclose(
        found.vector(2), found.embed([table(1).source.read(2)])[0], atol=1e-5
    )


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/home/me/net.pth", "net.pth"),
        ("~/net.pth", "net.pth"),
        ("C:\\me\\net.pth", "net.pth"),
        ("timm:/home/me/net", "timm:net"),
        ("https://host/a/net.pth", "https://host/a/net.pth"),
        ("resnet50", "resnet50"),
    ],
)
def test_a_setting_keeps_a_name_and_no_folder_of_the_machine(said, left):
    assert without_folders(said) == left
    assert without_places({"backbone": {"weights": said}}) == {"backbone": {"weights": left}}


def test_a_run_that_was_tested_at_its_end_can_be_indexed(tmp_path, monkeypatch):
    """Its scores are those of the held-out classes and, inside, those of the test classes."""
    stripes = write_stripes(tmp_path / "stripes")
    changes = {"evaluate.on": "held_out", "evaluate.folds": "2"}
    result = measure_untrained(tiny_recipe(stripes, **changes), tmp_path / "run")
    assert result["test"]["map_at_r"]
    found = built(tmp_path / "run", stripes, tmp_path / "index")
    assert found.facts["scores"]["test"] == result["test"]
    assert found.facts["scores"]["measured_on"] == result["measured_on"]
    remove(tmp_path / "index", 0)
    assert opened(tmp_path / "index").facts["scores"] == found.facts["scores"]
    # What no index can keep is refused before the work.
    monkeypatch.setattr(building, "embed_collection", lambda *_, **__: pytest.fail("it embeds"))
    facts = {**result, "test": {"map_at_r": None}}
    Run(tmp_path / "run").write_result(facts)
    with pytest.raises(ValueError, match="scores an index can keep; scores.test.map_at_r: "):
        build(tmp_path / "run", stripes, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_few_unseen_classes_give_a_threshold_with_a_wide_interval(lost_run, tmp_path):
    photos = write_glyphs(tmp_path / "few", num_classes=4, per_class=3)
    found = built(lost_run, photos, tmp_path / "index").threshold
    assert "4 classes of this index that never trained" in found.basis
    low, high = found.intervals["similarity"]
    assert low < found.similarity < high == 1
    low, high = found.intervals["false_match_rate"]
    assert high - low > 0.4
    remove(tmp_path / "index", "0")  # a change measures it again
    assert "4 classes" in opened(tmp_path / "index").threshold.basis


def test_a_threshold_can_be_given_and_later_changes_keep_it(lost_run, tmp_path):
    photos = write_glyphs(tmp_path / "few", num_classes=2, per_class=3)
    done = build(lost_run, photos, tmp_path / "index", threshold=0.875)
    found = opened(tmp_path / "index").threshold
    assert (found.similarity, found.false_match_rate, found.intervals) == (0.875, None, {})
    assert any("an unknown share of impostors" in line for line in done.lines)
    add(tmp_path / "index", write_glyphs(tmp_path / "more", num_classes=2, per_class=3, first=30))
    found = opened(tmp_path / "index").threshold
    assert found.similarity == 0.875
    assert 0 <= found.false_match_rate <= 1
    assert "4 classes" in found.basis
    with pytest.raises(ValueError, match="between -1 and 1; got 1.5"):
        build(lost_run, photos, tmp_path / "other", threshold=1.5)
