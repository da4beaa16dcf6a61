"""Columns and conditions over the wire and on the page, and items that fit no class."""

import csv
import json
from collections import Counter
from urllib.parse import urlencode

import numpy as np
import pytest
from glyph_catalogue import add, build, opened, write_glyphs
from PIL import Image
from server.pages import choose, counting, wait_for
from server.served import serving, upload_head
from tiny import wait_until

from weiss.server import Limits
from weiss.server.batching import Batcher, _Job

SIGN = "<b>&amp;"
SCRIPT = "javascript:alert(1)"


@pytest.fixture(scope="module")
def listed(run, tmp_path_factory):
    """A folder of glyphs with a list that has columns, and an index of it; some have no class."""
    folder = tmp_path_factory.mktemp("listed")
    data = write_glyphs(folder / "data", num_classes=5, per_class=6)
    rows = [
        {"path": path.relative_to(data).as_posix(), "label": path.parent.name}
        for path in sorted(data.rglob("*.png"))
    ]
    for at, row in enumerate(rows):
        link = f"https://example.com/{at}?a=1&b={SIGN}"
        own = {"price": f"{at / 2:.1f}" if at % 5 else "", "url": link, "by": SCRIPT, "kind": SIGN}
        row |= own
    with (data / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    build(run, data / "list.csv", folder / "index")
    other = write_glyphs(folder / "other", num_classes=2, per_class=4, first=30)
    for number, path in enumerate(sorted(other.rglob("*.png"))):
        path.rename(other / f"{number}.png")
    for empty in filter(lambda path: path.is_dir(), other.iterdir()):
        empty.rmdir()
    add(folder / "index", other)
    return folder


@pytest.fixture(scope="module")
def shop(listed):
    catalogue = opened(listed / "index")
    with serving(catalogue) as site:
        yield site, catalogue


def with_conditions(path, *where, **more):
    return f"{path}?{urlencode([*more.items(), *(('where', each) for each in where)])}"


def test_searches_under_conditions_are_those_of_the_catalogue(shop, picture):
    site, catalogue = shop
    some = catalogue.classes()[0][0]
    for where in ([], ["price<5"], [f"class={some}", "price>=1"], [f"kind={SIGN}"], ["price<-1"]):
        path = with_conditions("/items/3/neighbours", *where, k=50)
        found = site.get(path).json["results"]
        (hits,) = catalogue.search(catalogue.vector(3)[None], 50, leave_out=[3], where=where)
        assert [each["id"] for each in found] == [hit.item.id for hit in hits]
        assert [each["columns"] for each in found] == [hit.item.columns for hit in hits]
        answer = site.search(picture, with_conditions("/search", *where, k=50)).json["results"]
        assert {each["id"] for each in answer} - {3} == {each["id"] for each in found} - {3}
    assert site.get("/items/1").json["columns"]["price"] == 0.5
    assert "price" not in site.get("/items/0").json["columns"]
    assert site.get("/about").json["columns"] == ["price", "url", "by", "kind"]


@pytest.fixture
def calls(shop, monkeypatch):
    """How often the catalogue was asked to do what: a count of each method by its name."""
    _, catalogue = shop
    counts = Counter()

    def counted(name, method):
        def count(*given, **options):
            counts[name] += 1
            return method(*given, **options)

        monkeypatch.setattr(catalogue, name, count)

    for name in ("matching", "embed", "search"):
        counted(name, getattr(catalogue, name))
    return counts


BAD = [("prise<5",), ("price",), ("class=x",), ("price<5",) * 33]


@pytest.mark.parametrize("where", BAD)
def test_conditions_that_mean_nothing_are_refused_before_they_wait(shop, calls, picture, where):
    site, _ = shop
    for answer in (
        site.get(with_conditions("/items/3/neighbours", *where)),
        site.search(picture, with_conditions("/search", *where)),
    ):
        assert answer.status == 422
        assert "must" in answer.detail
        assert "command line" not in answer.detail  # who reads it has a page
    assert (calls["embed"], calls["search"]) == (0, 0)
    assert site.search(picture, with_conditions("/search", "price<5")).status == 200
    assert (calls["embed"], calls["search"]) == (1, 1)


def test_conditions_of_a_client_without_a_free_slot_are_not_looked_at(shop, calls, picture):
    _, catalogue = shop
    path = with_conditions("/search", "price<5")
    with serving(catalogue, Limits(max_uploads=1, seconds=60)) as site, site.line() as line:
        line.sendall(upload_head(10_000) + b"--")
        site.wait_for("weiss_uploads 1.0")
        assert site.search(picture, path).status == 503
        assert site.ask("POST", path).status == 503  # not even a file
        assert calls["matching"] == 0
        line.close()
        wait_until(lambda: site.search(picture, path).status == 200)
        assert calls["matching"] > 0


def test_jobs_of_a_batch_get_the_hits_of_their_own_conditions(shop, pictures):
    _, catalogue = shop
    some, other = (name for name, _ in catalogue.classes()[:2])
    pixels = np.asarray(Image.open(pictures / "U+0041" / "3.png").convert("RGB"))
    wanted = [("price<5",), (), (f"class={some}",), ("price<5",), (f"class={other}", "price>=1")]
    sizes = []
    batcher = Batcher(Limits(), sizes.append)
    jobs = [
        _Job(catalogue, k, where, picture=pixels if at % 2 else None, item=None if at % 2 else 7)
        for at, (k, where) in enumerate(zip((3, 50, 4, 5, 50), wanted, strict=True))
    ]
    found = batcher._find(jobs)
    assert sizes == [2]  # pictures in one pass
    assert len({tuple(hit.item.id for hit in hits) for hits in found}) == len(jobs)
    for job, hits in zip(jobs, found, strict=True):
        vector = catalogue.vector(7) if job.picture is None else catalogue.embed([pixels])[0]
        alone = catalogue.search(vector[None], job.k, leave_out=[job.item], where=job.where)[0]
        assert [hit.item.id for hit in hits[: job.k]] == [hit.item.id for hit in alone]
        assert {hit.item.id for hit in hits} <= {*catalogue.matching(job.where).tolist()}


def test_items_without_a_class_that_fit_none_come_in_groups(shop):
    site, catalogue = shop
    answer = site.get("/unknown").json
    groups = catalogue.unknown()
    assert groups, "the glyphs that were added must not all fit a class"
    assert answer["total"] == len(groups)
    assert not answer["is_cut"]
    for found, group in zip(answer["groups"], groups, strict=True):
        assert found["count"] == len(group)
        assert [each["id"] for each in found["items"]] == [item.id for item in group]
        assert not any(each["classes"] for each in found["items"])
    assert list(map(len, catalogue.unknown(most=1))) == [1]


def test_an_index_whose_items_all_have_classes_has_no_unknown_ones(site):
    assert site.get("/unknown").json == {"total": 0, "is_cut": False, "groups": []}


@pytest.mark.browser
def test_results_are_filtered_by_class_and_by_columns(look, shop, pictures):
    site, catalogue = shop
    page = look(address=site.address)
    choose(page, pictures / "U+0041" / "3.png")
    assert page.locator("#filters").is_visible()
    name = catalogue.classes()[1][0]
    with counting(page, "POST") as posts:
        page.fill("#only-class", name)
        page.keyboard.press("Enter")
        wait_for(page, "document.querySelectorAll('#results .card').length === 6")
        titles = page.locator("#results .card strong").all_inner_texts()
        assert set(titles) == {name}
        page.fill("#only-class", "")
        page.fill("#where", f"price >= 10, kind={SIGN}")
        page.locator("#filters button").click()
        right = len(catalogue.matching(["price>=10"]))
        assert 0 < right < 10
        wait_for(page, f"document.querySelectorAll('#results .card').length === {right}")
        prices = page.locator("#results .brief", has_text="price").all_inner_texts()
        assert all(float(text.split()[-1]) >= 10 for text in prices)
        assert len(posts) == 3  # one when the class was emptied
    page.fill("#where", "prise>3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "'price'" in page.locator("#problem").inner_text()
    page.fill("#where", "price>1000")
    page.keyboard.press("Enter")
    page.locator("#results", has_text="No other item satisfies the filter.").wait_for()
    page.fill("#where", "")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelectorAll('#results .card').length === 10")


@pytest.mark.browser
def test_columns_are_shown_as_text_and_only_addresses_are_links(look, shop):
    site, _ = shop
    page = look("#item=1", address=site.address)
    page.wait_for_selector("#results ol.cards a")
    asked = page.locator("#asked-words .columns")
    assert f"kind\n{SIGN}" in asked.inner_text()
    page.locator("#results .card a").first.click()
    page.wait_for_selector("#viewer .columns")
    links = page.locator("#viewer .columns a")
    assert links.count() == 1
    address = links.get_attribute("href")
    assert address.startswith("https://example.com/")
    assert "noopener" in links.get_attribute("rel")
    assert SCRIPT in page.locator("#viewer .columns").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_groups_of_unknown_items_are_below_the_classes(look, shop, width):
    site, catalogue = shop
    page = look("#classes", address=site.address, viewport={"width": width, "height": 900})
    page.wait_for_selector("#unknown-list .card")
    assert page.locator("#unknown-list h4").count() == len(catalogue.unknown())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#unknown-list .card a").first.click()
    page.wait_for_selector("#results ol.cards a")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.go_back()
    page.locator("#classes-list .card a").first.click()
    wait_for(page, "document.querySelectorAll('#unknown-list .card').length === 0")


def test_the_answers_of_the_server_can_be_read_by_any_program(shop):
    site, _ = shop
    json.loads(site.get("/items/2").body, parse_constant=lambda word: pytest.fail(word))
