"""What the page looks like: where one stands on it, names and numbers, in light and dark."""

import re
import shutil
from contextlib import ExitStack

import pytest
from server.pages import PHONE, choose, open_map, wait_for
from server.served import serving

pytestmark = pytest.mark.browser


def test_who_goes_on_begins_at_the_top_and_who_comes_back_is_where_they_were(look):
    page = look("#item=3")
    page.select_option("#k", "100")
    wait_for(page, "document.querySelectorAll('#results .card a').length === 100")
    card = page.locator("#results .card a").nth(95)
    card.scroll_into_view_if_needed()
    wait_for(page, "scrollY > 500")
    before = page.evaluate("scrollY")
    card.click()
    page.locator("#viewer-search").click()
    wait_for(page, "location.hash !== '#item=3' && scrollY === 0")
    page.wait_for_selector("#results:not([aria-busy]) ol.cards a")
    assert page.evaluate("scrollY") == 0
    page.go_back()
    wait_for(page, "before => Math.abs(scrollY - before) < 30", before)


def test_whoever_wants_more_neighbours_keeps_the_focus(look):
    page = look("#item=3")
    page.wait_for_selector("#results ol.cards a")
    page.locator("#k").focus()
    page.select_option("#k", "25")
    wait_for(page, "document.querySelectorAll('#results .card a').length === 25")
    assert page.evaluate("document.activeElement.id") == "k"


def test_the_title_of_the_window_says_what_is_shown(look, pictures, site):
    page = look()
    assert page.title() == "characters"
    for hash, title in [
        ("#item=12", f"{site.get('/items/12').json['classes'][0]} · characters"),
        ("#class=U%2B0041", "U+0041 · characters"),
        ("#map", "Map · characters"),
    ]:
        page.goto(f"{site.address}/{hash}")
        wait_for(page, "title => document.title === title", title)
    choose(page, pictures / "U+0041" / "3.png")
    assert page.title() == "Your photo · characters"


@pytest.fixture
def small_site(run, pictures, tmp_path):
    """A function that serves some of the files, all in one folder: they have no class."""
    from weiss.catalogue import Catalogue, build_index

    with ExitStack() as ending:

        def serve(*names):
            (tmp_path / "flat").mkdir()
            for number, name in enumerate(names):
                content = (pictures / name).read_bytes()
                (tmp_path / "flat" / f"IMG_{number:04}.png").write_bytes(content)
            build_index(run, tmp_path / "flat", tmp_path / "index", device="cpu", quiet=True)
            catalogue = Catalogue.open(tmp_path / "index", device="cpu")
            return ending.enter_context(serving(catalogue))

        yield serve


def test_items_without_a_class_are_called_by_their_names(look, small_site, pictures):
    names = [f"U+00{code}/{number}.png" for code in (41, 32) for number in range(4)]
    site = small_site(*names)
    page = look(address=site.address)
    page.wait_for_selector("#results .card a")
    assert page.locator("#results .card strong").first.inner_text() == "IMG_0000.png"
    choose(page, pictures / names[3])
    first = page.locator("#results .card").first
    assert first.locator("strong").inner_text() == "IMG_0003.png"
    assert first.locator("a").get_attribute("aria-label").startswith("1. IMG_0003.png, similarity")
    verdict = page.locator("#verdict").inner_text()
    assert "no class" not in page.locator("body").inner_text().lower()
    assert "Match:" not in verdict or "Match: IMG_0003.png" in verdict
    page.goto(f"{site.address}/#map")
    open_map(page)
    assert "class" not in page.locator("#map-words").inner_text().split("Crosses")[0]
    assert page.locator("#highlight").is_hidden()
    page.locator("#canvas").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tip:not([hidden])")
    name = page.locator("#tip-class").inner_text()
    assert re.fullmatch(r"IMG_000\d\.png", name)
    assert name in page.locator("#status").text_content()


def test_the_name_of_an_item_stands_below_its_class(look, site):
    page = look("#item=12")
    page.wait_for_selector("#results ol.cards a")
    card = page.locator("#results .card a").first
    found = site.get("/items/12/neighbours").json["results"][0]
    assert card.locator("strong").inner_text() == found["classes"][0]
    # The folder that is its class is not repeated; pointing at the card shows the whole name.
    assert f"{found['classes'][0]}/{card.locator('.name').inner_text()}" == found["name"]
    assert card.get_attribute("title") == found["name"]
    assert found["name"] in card.get_attribute("aria-label")


def test_one_item_lies_in_the_middle_of_the_map_and_has_no_neighbour(look, small_site):
    site = small_site("U+0041/0.png")
    page = look("#item=0", address=site.address)
    page.locator("#results", has_text="There is no other item.").wait_for()
    assert page.locator("#verdict").is_hidden()
    assert page.locator("#counts").inner_text() == "1 item"
    page.goto(f"{site.address}/#map")
    open_map(page)
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#tip-class", has_text="IMG_0000.png").wait_for()


def test_items_at_the_same_place_are_all_reached_by_keyboard(look, small_site):
    site = small_site(*["U+0041/0.png"] * 3, *["U+0032/0.png"] * 3)
    page = look("#map", address=site.address)
    open_map(page)
    page.locator("#canvas").focus()

    def walk(*keys):
        seen = set()
        for key in keys:
            for _ in range(8):
                page.keyboard.press(key)
                page.wait_for_selector("#tip:not([hidden])")
                seen.add(page.locator("#tip").get_attribute("href"))
        return seen

    everything = {f"#item={id}" for id in site.get("/map").json["ids"]}
    walk("ArrowLeft", "ArrowDown")
    assert walk("ArrowRight", "ArrowUp") | walk("ArrowLeft", "ArrowDown") == everything


def test_an_index_that_has_gone_is_told_with_the_next_search(look, index, tmp_path):
    from weiss.catalogue import Catalogue

    folder = shutil.copytree(index, tmp_path / "index")
    with serving(Catalogue.open(folder, device="cpu")) as site:
        page = look(address=site.address)
        page.wait_for_selector("#results .card a")
        assert page.locator("#outdated").is_hidden()
        shutil.rmtree(folder)
        page.locator("#results .card a").first.click()
        page.wait_for_selector("#outdated:not([hidden])")
        page.context.close()


@pytest.mark.parametrize("options", [PHONE, {"viewport": {"width": 1280, "height": 860}}])
@pytest.mark.parametrize("hash", ["", "#item=3", "#classes", "#all&start=24", "#map", "#about"])
def test_nothing_is_wider_than_the_window(look, hash, options):
    page = look(hash, **options)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # WCAG 2.2: 24 by 24 pixels; a link in a sentence may be as high as its line.
    small = """[...document.querySelectorAll(
        'a, button, select, summary, input:not(.hidden-input)')].filter(each => {
            const box = (each.closest('label') ?? each).getBoundingClientRect();
            const isFree = each.checkVisibility() && !each.closest('p');
            return isFree && Math.min(box.width, box.height) < 24;
        }).map(each => each.outerHTML)"""
    assert page.evaluate(small) == []
    unnamed = """[...document.querySelectorAll('img:not([alt]), a, button, select, input')].filter(
        each => {
            const label = each.getAttribute('aria-label') ?? '';
            const named = [...(each.labels ?? [])].map(own => own.textContent).join('');
            return each.checkVisibility() && !(label + each.textContent + named).trim();
        }).map(each => each.outerHTML)"""
    assert page.evaluate(unnamed) == []
    # aria-disabled means nothing on what has no role.
    assert page.locator("span[aria-disabled], div[aria-disabled]").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(look, theme):
    page = look(color_scheme=theme)

    def colour(name):
        code = "n => getComputedStyle(document.documentElement).getPropertyValue(n)"
        text = page.evaluate(code, f"--{name}").strip().lstrip("#")
        text = "".join(2 * letter for letter in text) if len(text) == 3 else text
        return [int(text[at : at + 2], 16) / 255 for at in (0, 2, 4)]

    def luminance(name):  # the definition of WCAG 2
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour(name)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one, other):
        low, high = sorted([luminance(one), luminance(other)])
        return (high + 0.05) / (low + 0.05)

    assert (luminance("paper") < 0.1) is (theme == "dark")
    for text in ("ink", "soft", "accent"):
        for ground in ("paper", "card", "tint"):
            assert contrast(text, ground) >= 4.5, (text, ground)
    for kind in ("good", "warn", "bad"):
        assert contrast(kind, f"{kind}-tint") >= 4.5, kind
        assert contrast("ink", f"{kind}-tint") >= 4.5, kind
    assert contrast("on-accent", "accent") >= 4.5


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_those_who_want_it_still(look, pictures, motion):
    page = look(reduced_motion=motion)
    page.wait_for_selector("#results .card a")
    is_still = motion == "reduce"
    fade = "getComputedStyle(document.querySelector('.card a')).transitionDuration"
    assert (page.evaluate(fade) == "0s") is is_still
    # What breathes is there only while an answer is on its way.
    held = []
    page.route("**/search?*", lambda asked: held.append(asked))
    page.set_input_files("#file", pictures / "U+0041" / "3.png")
    page.wait_for_selector(".card.pending .plate")
    name = "getComputedStyle(document.querySelector('.pending .plate')).animationName"
    assert page.evaluate(name) == ("none" if is_still else "breathe")
    held[0].continue_()
    page.wait_for_selector("#results:not([aria-busy]) ol.cards a")


@pytest.mark.parametrize("width", [390, 1280])
def test_tiles_of_tall_photos_are_equal_and_a_click_shows_the_photo_itself(
    look, run, tmp_path, width
):
    from PIL import Image

    from weiss.catalogue import Catalogue, build_index

    for number in range(6):
        size = (300, 400) if number % 2 else (400, 300)
        path = tmp_path / "photos" / f"class_{number // 3}" / f"a_long_name_of_a_photo_{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise(size, 20 + 30 * number).convert("RGB").save(path)
    build_index(run, tmp_path / "photos", tmp_path / "index", device="cpu", quiet=True)
    catalogue = Catalogue.open(tmp_path / "index", device="cpu")
    with serving(catalogue, originals=[tmp_path / "photos"]) as site:
        viewport = {"width": width, "height": 860}
        page = look("#item=0", address=site.address, viewport=viewport)
        page.wait_for_selector("#results ol.cards a")
        plates = page.evaluate(
            "[...document.querySelectorAll('#results .plate')].map(p => p.getBoundingClientRect())"
            ".map(b => [Math.round(b.width), Math.round(b.height)].join('x'))"
        )
        assert len(set(plates)) == 1
        assert len(plates) == 5
        bars = page.evaluate(
            "[...document.querySelectorAll('#results .fill')].map(f => f.offsetWidth)"
        )
        assert len(set(bars)) > 1
        page.locator("#results .card a").first.click()
        loaded = "document.querySelector('#viewer[open] img')?.naturalWidth"
        wait_for(page, f"[300, 400].includes({loaded})")
        address = page.locator("#viewer-original").get_attribute("href")
        assert site.get(address).headers["content-type"] == "image/jpeg"
        page.keyboard.press("ArrowRight")
        page.locator("#viewer-rank", has_text="2 of 5").wait_for()
        page.keyboard.press("Escape")
        wait_for(page, "!document.getElementById('viewer').open")
        page.context.close()
