"""What the server answers, over the wire, against the catalogue asked directly and the files."""

import gzip
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from server.hostile import encoded, png_of, scanned
from server.served import everything, serving

import weiss.server
from weiss._base import images
from weiss.catalogue import search_answer
from weiss.server.app import PAGE


def test_a_picture_finds_what_the_catalogue_finds_for_its_pixels(site, catalogue, picture):
    answer = site.search(picture, "/search?k=100").json
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    (hits,) = catalogue.search(catalogue.embed([pixels]), 100)
    assert [found["id"] for found in answer["results"]] == [hit.item.id for hit in hits]
    for found, hit in zip(answer["results"], hits, strict=True):
        assert found["similarity"] == pytest.approx(hit.similarity, abs=1e-5)
        assert found["match"] is (found["similarity"] >= answer["threshold"]["similarity"])
    assert {found["match"] for found in answer["results"]} == {True, False}
    assert answer["match"] is True
    assert answer["query"] == {"width": 32, "height": 32, "item": None}
    assert answer["results"][0]["name"] == "U+0041/3.png"


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "AVIF"])
def test_a_picture_is_the_same_in_every_format(site, picture, kind):
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "AVIF" else {}
    content = encoded(Image.open(io.BytesIO(picture)).convert("RGB"), kind, **options)
    found = site.search(content, name="x").json["results"][0]
    assert found["name"] == "U+0041/3.png"


def test_a_large_picture_is_reduced_as_the_model_says(site, catalogue, picture):
    large = Image.open(io.BytesIO(picture)).resize((900, 1200), Image.Resampling.BICUBIC)
    content = encoded(large, "JPEG", quality=95)
    answer = site.search(content, "/search?k=3").json
    # The whole picture, reduced by the network's own preprocessing rather than while decoding.
    (hits,) = catalogue.search(catalogue.embed([images.decode(content)]), 3)
    assert [found["id"] for found in answer["results"]] == [hit.item.id for hit in hits]
    assert answer["results"][0]["similarity"] == pytest.approx(hits[0].similarity, abs=1e-5)
    assert (answer["query"]["width"], answer["query"]["height"]) == (900, 1200)


def test_an_item_is_its_file(site, pictures):
    for found in site.get("/classes/items?count=5&start=100").json["items"]:
        item = site.get(f"/items/{found['id']}").json
        assert item == found
        assert item["classes"] == [Path(item["name"]).parent.name]
        thumbnail = site.get(item["thumbnail"])
        assert thumbnail.headers["content-type"] in ("image/png", "image/jpeg")
        # Another server may have another item at the same address.
        assert "immutable" in thumbnail.headers["cache-control"]
        shown = np.asarray(Image.open(io.BytesIO(thumbnail.body)).convert("L"))
        assert np.array_equal(shown, np.asarray(Image.open(pictures / item["name"]).convert("L")))
    assert site.get("/items/0/thumbnail?v=another").headers["cache-control"] == "no-store"


def test_classes_are_the_folders_and_their_files(site, pictures):
    answer = site.get("/classes").json
    files = Counter(path.parent.name for path in pictures.rglob("*.png"))
    assert {found["name"]: found["count"] for found in answer["classes"]} == files
    assert answer["items"] == files.total()
    names = [found["name"] for found in answer["classes"]]
    assert names == sorted(names)
    for found in answer["classes"][:3]:
        assert site.get(f"/items/{found['first']}").json["classes"] == [found["name"]]


@pytest.mark.parametrize("name", [None, "U+0041"])
def test_pages_of_a_class_hold_every_item_once(site, pictures, name):
    which = "" if name is None else "&name=U%2B0041"
    seen, start = [], 0
    while items := (page := site.get(f"/classes/items?count=3&start={start}{which}").json)["items"]:
        assert len(items) <= 3
        seen += [item["name"] for item in items]
        start += 3
    folder = pictures if name is None else pictures / name
    assert sorted(seen) == sorted(str(p.relative_to(pictures)) for p in folder.rglob("*.png"))
    assert page["total"] == len(seen)


def test_the_map_has_every_item_once_with_its_class_and_travels_compressed(site, catalogue):
    answer = site.get("/map").json
    assert sorted(answer["ids"]) == sorted(catalogue.map().ids.tolist())
    assert len(answer["ids"]) == answer["total"] == len(catalogue)
    points = catalogue.map().points
    assert np.allclose(np.stack([answer["x"], answer["y"]], 1), points, atol=1e-4)
    for id, place in list(zip(answer["ids"], answer["classes"], strict=True))[::37]:
        assert [answer["class_names"][place]] == site.get(f"/items/{id}").json["classes"]
    fields = answer["fields"]
    assert len(fields["names"]) == len(fields["x"]) == len(fields["y"]) > 0
    packed = site.get("/map", Accept_Encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == site.get("/map").body


def test_the_model_the_limits_and_good_health_are_told(site, catalogue):
    about = site.get("/about").json
    assert about["items"] == len(catalogue)
    assert about["classes"] == 40
    assert about["facts"] == json.loads(json.dumps(catalogue.facts))
    assert about["limits"]["bytes"] == 20_000_000
    assert about["outdated"] is False
    assert site.get("/healthz").json == {"status": "ok", "items": len(catalogue)}


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/items/999999", 404, "this item was removed, or never there. Choose another one"),
        ("/items/999999/thumbnail", 404, "id must be that of an item"),
        ("/items/999999/neighbours", 404, "id must be that of an item"),
        ("/items/+1", 422, "id must be an integer from 0; got '+1'"),
        ("/items/1_0", 422, "id must be an integer from 0; got '1_0'"),
        ("/items/%D9%A1", 422, "id must be an integer from 0"),
        ("/items/1/neighbours?k=1_0", 422, "k must be an integer from 1 to 100; got '1_0'"),
        ("/items/0/", 404, "must be one of those in /openapi.json"),
        ("/items/-1", 422, "id must be an integer from 0; got '-1'"),
        (f"/items/{10**30}", 422, "id must be an integer"),
        ("/items/1/neighbours?k=0", 422, "k must be an integer from 1 to 100; got '0'"),
        ("/items/1/neighbours?k=101", 422, "k must be an integer from 1 to 100; got '101'"),
        ("/classes/items?count=0", 422, "count must be an integer from 1 to 200"),
        ("/classes/items?start=-1", 422, "start must be an integer from 0"),
        ("/classes/items?name=none", 404, "name must be a class of this catalogue"),
        ("/docs", 404, "must be one of those in /openapi.json"),
        ("/search", 405, "must be one of those in /openapi.json"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_word_why(site, path, status, detail):
    answer = site.get(path)
    assert answer.status == status
    assert detail in answer.detail


@pytest.mark.parametrize("k", ["0", "101", ""])
def test_a_search_wants_1_to_100_neighbours(site, picture, k):
    answer = site.search(picture, f"/search?k={k}")
    assert answer.status == 422
    assert "k must be an integer from 1 to 100" in answer.detail


PHOTO = encoded(Image.effect_noise((200, 200), 50), "JPEG")


@pytest.mark.parametrize(
    ("content", "status", "detail"),
    [
        (b"", 400, "it is empty"),
        (PHOTO[: len(PHOTO) // 2], 400, "damaged or cut short"),
        (b"no image at all", 415, "JPEG, PNG, WEBP, AVIF, GIF, BMP"),
        (b"GIF89a", 415, "file must be an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, 415, "file must be an image"),
        # Formats that cost more than they say, or start programs.
        (encoded(Image.new("RGB", (8, 8)), "TIFF"), 415, "file must be an image"),
        (encoded(Image.new("RGB", (8, 8)), "PPM"), 415, "file must be an image"),
        (encoded(Image.new("RGB", (8, 8)), "EPS"), 415, "file must be an image"),
        (png_of(60_000, 60_000), 413, "at most 40 megapixels"),
        (png_of(7_000, 7_000), 413, "at most 40 megapixels"),
        (png_of(1, 30_000), 413, "at most 20,000 a side"),
        (scanned(64, 2000), 413, "at most 100 scans; this one has 2,000"),
    ],
)
def test_a_file_that_is_refused_is_told_why_and_the_next_one_is_not(
    site, picture, content, status, detail
):
    answer = site.search(content)
    assert answer.status == status
    assert detail in answer.detail
    assert site.search(picture).status == 200


def test_a_request_that_is_no_form_is_told_how_to_send_one(site, picture):
    for kind in ("image/png", "application/json", "multipart/form-data", ""):
        answer = site.ask("POST", "/search", picture, {"Content-Type": kind} if kind else {})
        assert answer.status == 415
        assert "multipart/form-data in a field named file" in answer.detail
    answer = site.search(picture, field="photo")
    assert answer.status == 400
    assert "must have a field named file" in answer.detail


def test_metrics_count_what_was_asked(catalogue, picture):
    with serving(catalogue) as site:
        for content in (picture, picture, picture, b"no picture"):
            site.search(content)
        for path in ("/items/0", "/items/1", "/items/999999", "/some/where"):
            site.get(path)
        answer = site.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.body.decode()))
    kinds = {family.name: family.type for family in families}
    assert kinds["weiss_requests"] == "counter"
    assert kinds["weiss_request_seconds"] == kinds["weiss_batch_size"] == "histogram"
    assert kinds["weiss_waiting"] == kinds["weiss_items"] == "gauge"
    samples = [sample for family in families for sample in family.samples]
    assert not any(sample.name.endswith("_created") for sample in samples)
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert found["weiss_requests_total", "POST", "/search", "200"] == 3
    assert found["weiss_requests_total", "POST", "/search", "415"] == 1
    assert found["weiss_requests_total", "GET", "/items/{id}", "200"] == 2
    assert found["weiss_requests_total", "GET", "/items/{id}", "404"] == 1
    assert found["weiss_requests_total", "GET", "none", "404"] == 1
    assert found["weiss_items",] == len(catalogue)
    assert found["weiss_waiting",] == 0
    assert found["weiss_batch_size_sum",] == found["weiss_batch_size_count",] == 3
    assert found["weiss_request_seconds_count", "/search"] == 4
    assert found["weiss_request_seconds_bucket", "+Inf", "/search"] == 4
    assert 0 < found["weiss_request_seconds_sum", "/search"] < 60


def test_the_interface_is_described_with_all_its_answers(site):
    described = site.get("/openapi.json").json
    promised = {"/search", "/items/{id}", "/classes", "/map", "/about", "/healthz", "/metrics"}
    assert promised <= set(described["paths"])
    body = described["paths"]["/search"]["post"]["requestBody"]["content"]
    assert "file" in body["multipart/form-data"]["schema"]["properties"]
    ok = described["paths"]["/search"]["post"]["responses"]["200"]["content"]
    assert ok["application/json"]["schema"]["$ref"].endswith("SearchAnswer")


def test_a_search_is_answered_as_weiss_search_prints_it_and_with_thumbnails(
    site, catalogue, picture
):
    answer = site.get("/items/3/neighbours?k=2").json
    (hits,) = catalogue.search(catalogue.vector(3)[None], 2, leave_out=[3])
    expected = json.loads(json.dumps(search_answer(hits, catalogue.threshold)))
    for found in answer["results"]:
        assert found.pop("thumbnail").startswith(f"/items/{found['id']}/thumbnail?v=")
    assert answer.pop("query")["item"]["id"] == 3
    assert answer == expected
    assert site.search(picture).json.keys() == {"query", *expected}


def test_the_page_comes_whole_and_is_not_sent_twice(site):
    first = site.get("/")
    assert b"<main" in first.body
    again = site.get("/", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    folder = Path(weiss.server.__file__).parent / "page"
    assert {path.name for path in folder.iterdir()} == {*PAGE, "index.html"}
    for name, kind in PAGE.items():
        answer = site.get(f"/page/{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert answer.body == (folder / name).read_bytes()


def test_the_page_loads_nothing_from_elsewhere_and_makes_no_markup_of_text():
    for path in (Path(weiss.server.__file__).parent / "page").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|(?:src|href)=\"//|url\(", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", text), path.name
        assert not re.search(r"\son[a-z]+=\"|style=\"|<script>|<style", text), path.name


def test_an_index_that_changes_is_served_as_it_was_and_the_change_is_told(index, tmp_path):
    from weiss.catalogue import Catalogue, remove_items

    folder = shutil.copytree(index, tmp_path / "index")
    with serving(Catalogue.open(folder, device="cpu")) as site:
        before = site.get("/items/5").json
        assert site.get("/about").json["outdated"] is False
        remove_items(folder, [before["name"]])
        assert site.get("/about").json["outdated"] is True
        assert site.get("/items/5").json == before
        assert site.get(before["thumbnail"]).status == 200
        assert site.get("/about").json["items"] == 320
    with serving(Catalogue.open(folder, device="cpu")) as site:
        assert site.get("/about").json["outdated"] is False
        shutil.rmtree(folder)
        assert site.get("/about").json["outdated"] is True
        assert site.get("/items/5").status == 404
        assert site.get("/about").json["items"] == 319


def test_every_address_answers_and_its_head_is_that_of_the_whole(site):
    for path in everything(site):
        head, whole = site.ask("HEAD", path), site.get(path)
        assert (whole.status, head.status, head.body) == (200, 200, b""), path
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert site.ask("HEAD", "/items/999999").status == 404
    assert site.ask("HEAD", "/search").status == 405
