"""An opened index: its searches against nested loops, its items, its refusals."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from glyph_catalogue import with_other_weights
from PIL import Image

from weiss._base.images import decode
from weiss.catalogue import (
    Catalogue,
    Hit,
    Item,
    OtherModelError,
    UnknownItemError,
    add_items,
    search_answer,
)
from weiss.catalogue.export import export_run
from weiss.catalogue.gallery_page import write_gallery


def all_ids(catalogue):
    return [item.id for item in catalogue.items_of(None, 0, 10**6)]


def test_hits_are_the_nearest_by_nested_loops(catalogue):
    queries = [3, 77, 200]
    found = catalogue.search(np.stack([catalogue.vector(id) for id in queries]), 6)
    for id, hits in zip(queries, found, strict=True):
        own = catalogue.vector(id)
        cosines = {
            other: sum(
                float(a) * float(b) for a, b in zip(own, catalogue.vector(other), strict=True)
            )
            for other in all_ids(catalogue)
        }
        best = sorted(cosines.values(), reverse=True)[:6]
        assert [hit.similarity for hit in hits] == pytest.approx(best, abs=1e-5)
        for hit in hits:
            assert hit.similarity == pytest.approx(cosines[hit.item.id], abs=1e-5)
            assert hit.distance == 1 - hit.similarity
            assert hit.is_match == (hit.similarity >= catalogue.threshold.similarity)
    assert isinstance(found[0][0], Hit)
    assert isinstance(found[0][0].item, Item)


def test_an_item_that_is_left_out_is_not_found_and_the_others_move_up(catalogue):
    vectors = np.stack([catalogue.vector(5), catalogue.vector(9)])
    plain = catalogue.search(vectors, 4)
    without = catalogue.search(vectors, 3, leave_out=[5, None])
    assert plain[0][0].item.id == 5
    assert [hit.item.id for hit in without[0]] == [hit.item.id for hit in plain[0][1:]]
    assert [hit.item.id for hit in without[1]] == [hit.item.id for hit in plain[1][:3]]


def test_who_asks_for_more_than_there_are_gets_all_of_them_once(catalogue):
    (hits,) = catalogue.search(catalogue.vector(0)[None], 10_000)
    assert sorted(hit.item.id for hit in hits) == all_ids(catalogue)
    (others,) = catalogue.search(catalogue.vector(0)[None], 10_000, leave_out=[0])
    assert len(others) == len(catalogue) - 1
    assert catalogue.search(np.zeros((0, 32), dtype=np.float32), 3) == []


def test_a_picture_finds_its_own_item(catalogue, glyph_folder):
    names = ["U+0041/0.png", "U+0043/3.png"]
    vectors = catalogue.embed([decode(glyph_folder / name) for name in names])
    assert vectors.shape == (2, catalogue.embedding_size)
    assert [hits[0].item.name for hits in catalogue.search(vectors, 1)] == names
    grey = catalogue.embed([decode(glyph_folder / names[0], channels=1)])
    np.testing.assert_allclose(grey[0], vectors[0], atol=1e-4)
    assert catalogue.embed([]).shape == (0, catalogue.embedding_size)


def test_classes_and_items_are_counted_and_paged(catalogue):
    classes = catalogue.classes()
    assert len(classes) == catalogue.facts["num_classes"] == 40
    assert classes == sorted(classes)
    assert sum(count for _, count in classes) == len(catalogue) == 320
    first = catalogue.items_of("U+0041", 0, 5)
    rest = catalogue.items_of("U+0041", 5, 5)
    assert len(first) + len(rest) == dict(classes)["U+0041"]
    assert all(item.class_names == ("U+0041",) for item in first + rest)
    assert catalogue.items_of("no such class", 0, 5) == []
    assert catalogue.items_of(None, 318, 5) == [catalogue.item(318), catalogue.item(319)]
    assert catalogue.items_of(None, -5, -1) == []


def test_the_map_has_every_item_and_the_fields_of_every_training_class(catalogue):
    found = catalogue.map()
    assert found.ids.tolist() == all_ids(catalogue)
    assert found.points.shape == (320, 2)
    assert len(found.field_names) == len(found.field_points) == 482
    assert found.method in ("PCA of class means", "UMAP")
    assert np.isfinite(found.points).all()
    assert np.isfinite(found.field_points).all()


@pytest.mark.parametrize("id", [-1, 320, True, 2**63])
def test_an_id_that_is_not_there_is_told(catalogue, id):
    for ask in (catalogue.item, catalogue.vector, catalogue.thumbnail, catalogue.thumbnail_type):
        with pytest.raises(UnknownItemError, match="an id must be that of an item"):
            ask(id)


def test_what_cannot_be_searched_is_refused(catalogue):
    with pytest.raises(ValueError, match=r"vectors must have shape \(q, 32\); got \(1, 31\)"):
        catalogue.search(np.zeros((1, 31), dtype=np.float32), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        catalogue.search(catalogue.vector(0)[None], 0)
    with pytest.raises(ValueError, match="leave_out must have one id"):
        catalogue.search(catalogue.vector(0)[None], 1, leave_out=[1, 2])


def test_the_json_of_a_search_has_the_keys_that_programs_rely_on(catalogue):
    (hits,) = catalogue.search(catalogue.vector(5)[None], 2)
    answer = search_answer(hits, catalogue.threshold)
    assert list(answer) == ["threshold", "match", "results"]
    assert answer["threshold"] == catalogue.facts["threshold"]
    assert answer["match"] is True
    assert answer["results"][0] == {
        "id": 5,
        "name": catalogue.item(5).name,
        "classes": list(catalogue.item(5).class_names),
        "columns": {},
        "similarity": hits[0].similarity,
        "distance": hits[0].distance,
        "match": True,
    }
    far = replace(hits[0], is_match=False)
    assert search_answer([far, *hits], catalogue.threshold)["match"] is False
    assert search_answer([], catalogue.threshold)["match"] is False
    unknown = search_answer([replace(far, is_match=None)], None)
    assert (unknown["threshold"], unknown["match"]) == (None, None)


def test_facts_can_be_written_as_json(catalogue):
    back = json.loads(json.dumps(catalogue.facts))
    assert back == catalogue.facts
    assert back["model"]["backbone"] == "small"
    assert "folder" not in back["model"]
    assert back["threshold"]["basis"] == catalogue.threshold.basis


def test_a_gallery_page_needs_nothing_else(catalogue, glyph_folder, tmp_path):
    path = glyph_folder / "U+0041" / "0.png"
    pixels = decode(path)
    (hits,) = catalogue.search(catalogue.embed([pixels]), 4)
    write_gallery(tmp_path / "page.html", catalogue, [("<b>0.png", pixels, hits)])
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "&lt;b&gt;0.png" in page
    assert "<b>0.png" not in page
    assert "U+0041/<wbr>0.<wbr>png" in page  # a long name breaks there, not within a word
    assert "http://" not in page
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.slow
def test_an_onnx_export_takes_the_networks_place_if_it_is_the_same_model(
    glyph_run, glyph_index, glyph_folder, catalogue, tmp_path
):
    pytest.importorskip("onnxruntime")
    export_run(glyph_run, tmp_path / "model.onnx")
    by_onnx = Catalogue.open(glyph_index, device="cpu", onnx=tmp_path / "model.onnx")
    pixels = [decode(glyph_folder / "U+0041" / "0.png"), np.asarray(Image.new("RGB", (300, 200)))]
    np.testing.assert_allclose(by_onnx.embed(pixels), catalogue.embed(pixels), atol=1e-4)
    other = with_other_weights(glyph_run, tmp_path / "other")
    export_run(other, tmp_path / "other.onnx")
    with pytest.raises(OtherModelError, match="other.onnx is of another"):
        Catalogue.open(glyph_index, device="cpu", onnx=tmp_path / "other.onnx")


def test_the_same_tensors_prepared_otherwise_are_another_model(
    glyph_run, glyph_index, glyph_folder, tmp_path
):
    same = export_run(glyph_run, tmp_path / "same.safetensors").path
    Catalogue.open(glyph_index, device="cpu", onnx=same)
    other = shutil.copytree(glyph_run, tmp_path / "other")
    recipe = (other / "recipe.toml").read_text()
    changed = re.sub(r"(\[evaluate\][^\[]*?\nresize = )\d+", r"\g<1>40", recipe)
    assert changed != recipe
    (other / "recipe.toml").write_text(changed)
    made = export_run(other, tmp_path / "other.safetensors")
    with pytest.raises(OtherModelError, match="has the same tensors, but another"):
        Catalogue.open(glyph_index, device="cpu", onnx=made.path)
    with pytest.raises(OtherModelError, match="other is another than the one"):
        add_items(
            shutil.copytree(glyph_index, tmp_path / "index"), glyph_folder, run=other, quiet=True
        )


def test_a_catalogue_is_closed_at_the_end_of_a_with(glyph_index, monkeypatch):
    closed = []
    monkeypatch.setattr(Catalogue, "close", lambda self: closed.append(self))
    with Catalogue.open(glyph_index, device="cpu") as found:
        assert len(found) == 320
        assert not closed
    assert closed == [found]
