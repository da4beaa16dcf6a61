"""The page of a catalogue in a real browser: by mouse, finger and keyboard."""

import re

import numpy as np
import pytest
from server.pages import FILE_EVENT, PHONE, choose, counting, look_at_map, open_map, wait_for
from server.served import serving

pytestmark = pytest.mark.browser


def test_a_chosen_photo_shows_its_nearest_items_and_the_verdict(look, pictures):
    page = look()
    assert page.locator("#name").inner_text() == "characters"
    assert page.locator("#counts").inner_text() == "320 items · 40 classes"
    choose(page, pictures / "U+0041" / "3.png")
    cards = page.locator("#results .card a")
    assert cards.count() == 10
    assert cards.first.get_attribute("aria-label").startswith("1. U+0041, similarity 1.000")
    assert "Match: U+0041" in page.locator("#verdict").inner_text()
    assert "threshold" in page.locator("#verdict").inner_text()
    assert "False matches:" in page.locator("#verdict").inner_text()
    assert "Match: U+0041" in page.locator("#status").text_content()
    page.locator("#results .card img").last.scroll_into_view_if_needed()
    wait_for(
        page,
        "[...document.querySelectorAll('#results img')].every(i => i.complete && i.naturalWidth)",
    )


def test_a_click_searches_on_and_back_comes_back_without_asking_again(look, pictures):
    page = look()
    choose(page, pictures / "U+0041" / "3.png")
    first = page.locator("#results .card a").nth(2)
    to = first.get_attribute("href")
    with counting(page, "POST") as posts:
        first.click()
        page.locator("#viewer-search").click()
        page.locator("#asked-words", has_text=".png").wait_for()
        assert page.url.endswith(to)
        page.go_back()
        page.locator("#asked-words", has_text="Your photo").wait_for()
        assert page.url.endswith("#photo=1")
        label = page.locator("#results .card a").first.get_attribute("aria-label")
        assert label.startswith("1. U+0041")
        page.go_forward()
        page.locator("#asked-words", has_text=".png").wait_for()
        assert posts == []


def test_an_address_with_an_item_can_be_shared(look, site):
    page = look("#item=12")
    page.wait_for_selector("#results ol.cards a")
    name = site.get("/items/12").json["name"]
    assert name in page.locator("#asked-words").inner_text()


def test_a_photo_of_a_page_that_was_loaded_anew_is_gone(look, pictures):
    page = look()
    choose(page, pictures / "U+0041" / "3.png")
    page.reload()
    page.locator("#found-title", has_text="Or begin with one of these").wait_for()
    assert page.locator("#problem").inner_text() == "The photo is no longer here; choose it again."
    # The next photo is another one, for the address too.
    choose(page, pictures / "U+0032" / "3.png")
    assert page.locator("#problem").is_hidden()
    label = page.locator("#results .card a").first.get_attribute("aria-label")
    assert label.startswith("1. U+0032")
    assert page.url.endswith("#photo=2")
    page.go_back()
    page.wait_for_selector("#problem:not([hidden])")
    page.go_forward()
    page.locator("#asked-words", has_text="Your photo").wait_for()


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_a_photo_can_be_pasted_and_dropped_whatever_is_shown(look, site, way):
    page = look("#classes")
    page.wait_for_selector("#classes-list .card")
    page.evaluate(FILE_EVENT, ["/items/80/thumbnail", way])
    page.wait_for_selector("#results:not([aria-busy]) ol.cards a")
    label = page.locator("#results .card a").first.get_attribute("aria-label")
    assert site.get("/items/80").json["classes"][0] in label
    assert page.locator("#curtain").is_hidden()


def test_more_neighbours_are_shown_when_somebody_wants_them(look, pictures):
    page = look()
    choose(page, pictures / "U+0041" / "3.png")
    page.select_option("#k", "25")
    wait_for(page, "document.querySelectorAll('#results .card a').length === 25")
    assert page.locator("#results h3").count() in (0, 2)


def test_a_broken_file_is_explained_and_the_next_one_works(look, pictures):
    page = look()
    broken = {"name": "../x.png", "mimeType": "image/png", "buffer": b"no picture"}
    page.set_input_files("#file", broken)
    page.wait_for_selector("#problem:not([hidden])")
    assert "File must be an image" in page.locator("#problem").inner_text()
    choose(page, pictures / "U+0041" / "3.png")
    assert page.locator("#problem").is_hidden()


def test_a_file_that_is_too_large_is_not_even_sent(look, tmp_path):
    page = look("#map")
    large = tmp_path / "large.png"
    large.write_bytes(bytes(20_000_001))
    with counting(page, "POST") as posts:
        page.set_input_files("#file", large)
        page.wait_for_selector("#problem:not([hidden])")
        assert "at most 20 MB; this one has 20.0" in page.locator("#problem").inner_text()
        assert posts == []


def test_an_item_that_is_gone_is_explained(look):
    page = look("#item=77777")
    page.wait_for_selector("#problem:not([hidden])")
    assert "must be that of an item" in page.locator("#problem").inner_text()


def test_a_server_that_has_gone_is_noticed(browser, catalogue):
    with serving(catalogue) as site:
        page = browser.new_page()
        page.goto(site.address)
        page.wait_for_selector("#results .card")
    page.locator(".tabs a", has_text="Map").click()
    page.locator("#map-words", has_text="The server does not answer").wait_for()
    page.close()


def test_classes_are_filtered_opened_and_paged(look, site):
    page = look("#classes")
    page.wait_for_selector("#classes-list .card")
    assert page.locator("#classes-list .card").count() == 40
    page.fill("#filter", "u+004")
    page.locator("#classes-words", has_text="of 40 classes").wait_for()
    shown = page.locator("#classes-list .card strong").all_inner_texts()
    assert shown
    assert all("U+004" in name for name in shown)
    page.fill("#filter", "nothing like it")
    assert "No class has" in page.locator("#classes-list").inner_text()
    page.fill("#filter", "")
    page.locator("#classes-list .card a", has_text="U+0041").click()
    page.locator("#classes-title", has_text="U+0041").wait_for()
    wait_for(page, "document.querySelectorAll('#classes-list .card').length === 8")
    page.go_back()
    page.get_by_role("link", name="All 320 items").click()
    page.locator(".pages", has_text="Page 1 of 14").wait_for()
    before = page.locator("#classes-list .card a").first.get_attribute("href")
    page.get_by_role("link", name="Next").click()
    page.locator(".pages", has_text="Page 2 of 14").wait_for()
    assert "25 to 48 of 320 items" in page.locator("#classes-words").inner_text()
    assert page.locator("#classes-list .card a").first.get_attribute("href") != before
    page.get_by_role("link", name="Previous").click()
    page.locator(".pages", has_text="Page 1 of 14").wait_for()
    page.locator("#classes-list .card a").first.click()
    page.wait_for_selector("#results ol.cards a")


def test_pointing_at_the_map_shows_the_photo_and_a_click_searches(look, site):
    page, answer, shown, point = look_at_map(look, site)
    page.mouse.move(*shown[point])
    page.wait_for_selector("#tip:not([hidden])")
    item = site.get(f"/items/{answer['ids'][point]}").json
    assert page.locator("#tip-class").inner_text() == item["classes"][0]
    assert page.locator("#tip-name").inner_text() == item["name"]
    wait_for(page, "document.getElementById('tip-picture').naturalWidth > 0")
    # What lies under a turning wheel stays there, and so does what is found.
    page.mouse.wheel(0, -400)
    page.mouse.move(*(shown[point] + [1, 1]))
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip-name").inner_text() == item["name"]
    page.mouse.click(*shown[point])
    page.wait_for_selector("#results ol.cards a")
    assert page.url.endswith(f"#item={item['id']}")
    page.go_back()
    page.wait_for_selector("#canvas")
    assert page.locator("#map").is_visible()


def test_the_map_moves_by_hand_and_shows_all_again(look, site):
    page, answer, shown, point = look_at_map(look, site)
    start, by = shown[point], np.array([90.0, 60.0])
    inside = shown.mean(0)
    page.mouse.move(*inside)
    page.mouse.down()
    page.mouse.move(*(inside + by), steps=4)
    page.mouse.up()
    assert "#map" in page.url  # a drag is no click
    page.mouse.move(*(start + by))
    page.wait_for_selector("#tip:not([hidden])")
    name = site.get(f"/items/{answer['ids'][point]}").json["name"]
    assert page.locator("#tip-name").inner_text() == name
    page.get_by_role("button", name="Show all").click()
    page.mouse.move(*start)
    page.locator("#tip-name", has_text=name).wait_for()


def test_a_highlighted_class_is_the_only_one_that_can_be_pointed_at(look, site):
    page, answer, shown, point = look_at_map(look, site)
    own = answer["class_names"][answer["classes"][point]]
    other = next(name for name in answer["class_names"] if name != own)
    page.fill("#highlight", other)
    page.mouse.move(*shown[point])
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.locator("#tip").is_hidden() or page.locator("#tip-class").inner_text() == other
    page.fill("#highlight", own)
    page.mouse.move(*(shown[point] + [1, 0]))
    page.locator("#tip-class", has_text=own).wait_for()


def test_a_finger_sees_the_photo_first_and_searches_with_the_second_tap(look, site):
    page, answer, shown, point = look_at_map(look, site, **PHONE)
    page.touchscreen.tap(*shown[point])
    page.wait_for_selector("#tip.pinned:not([hidden])")
    assert "#map" in page.url
    tip = page.locator("#tip").bounding_box()
    x, y = shown[point]
    covered = tip["x"] <= x <= tip["x"] + tip["width"] and tip["y"] <= y <= tip["y"] + tip["height"]
    assert not covered
    page.locator("#tip").tap()
    page.wait_for_selector("#results ol.cards a")
    assert page.url.endswith(f"#item={answer['ids'][point]}")


def test_all_of_it_can_be_done_by_keyboard_alone(look):
    page = look()
    page.wait_for_selector("#results .card a")

    def tab_until(selector, most=40):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        pytest.fail(f"no way to {selector} by Tab")

    tab_until("#skip")
    assert page.locator("#skip").bounding_box()["y"] >= 0
    tab_until(".tabs a[href='#search']")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    tab_until("#file")
    ring = "getComputedStyle(document.querySelector('.drop .button')).outlineStyle"
    assert page.evaluate(ring) == "solid"
    tab_until("#results .card a")
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#results ol.cards a")
    # What is new begins where the focus is now.
    assert page.evaluate("document.activeElement.id") == "found-title"
    tab_until("#results .card a")
    page.locator(".tabs a[href='#map']").focus()
    page.keyboard.press("Enter")
    open_map(page)
    tab_until("#canvas")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tip:not([hidden])")
    first = page.locator("#tip").get_attribute("href")
    assert page.locator("#tip-class").inner_text() in page.locator("#status").text_content()
    for key in ("+", "Shift+ArrowLeft", "-", "0", "ArrowLeft"):
        page.keyboard.press(key)
    wait_for(page, "first => document.getElementById('tip').getAttribute('href') !== first", first)
    page.keyboard.press("Enter")
    page.wait_for_selector("#results ol.cards a")
    assert "#item=" in page.url


def test_names_are_text_whatever_they_look_like(look, run, pictures, tmp_path):
    from weiss.catalogue import Catalogue, build_index

    name = "<img src=x onerror=\"document.title='caught'\">&amp; #+?%41"
    for number in range(3):
        path = tmp_path / "odd" / name / f"{number}<b>.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((pictures / "U+0041" / f"{number}.png").read_bytes())
    build_index(run, tmp_path / "odd", tmp_path / "index", device="cpu", quiet=True)
    catalogue = Catalogue.open(tmp_path / "index", device="cpu")
    with serving(catalogue) as site:
        page = look("#classes", address=site.address)
        page.locator("#classes-list .card a").first.click()
        page.locator("#classes-title").get_by_text(name).wait_for()
        page.locator("#classes-list .card a").first.click()
        page.wait_for_selector("#results ol.cards a")
        assert name in page.locator("#results .card strong").first.inner_text()
        page.locator(".chip").click()
        page.locator("#classes-title").get_by_text(name).wait_for()
        page.goto(f"{site.address}/#about")
        page.locator("#about-facts dl").first.wait_for()
        assert not re.search("caught", page.title())
        page.context.close()
