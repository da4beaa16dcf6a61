"""A shared secret: who does not send it sees nothing of the catalogue."""

import pytest
from server.served import BEARER, TOKEN, everything, serving

from weiss.server import make_app, serve

OPEN = {"/", "/healthz", "/page/script.js"}


@pytest.fixture(scope="module")
def closed(catalogue):
    """A server with a secret."""
    with serving(catalogue, token=TOKEN) as site:
        yield site


def cookie_of(site):
    answer = site.ask("POST", "/login", headers=BEARER)
    assert answer.status == 204
    return answer.headers["set-cookie"]


def test_without_the_secret_only_the_empty_page_and_health_are_shown(closed, site, picture):
    for path in everything(site):
        answer = closed.get(path)
        assert answer.status == (200 if path in OPEN else 401), path
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "content-security-policy" in answer.headers
            assert TOKEN not in answer.detail
    assert closed.search(picture).status == 401
    assert closed.ask("POST", "/login").status == 401
    assert b"characters" not in closed.get("/").body


def test_programs_send_the_secret_as_a_header(closed, picture):
    assert closed.get("/about", **BEARER).status == 200
    assert closed.search(picture, **BEARER).json["results"][0]["name"] == "U+0041/3.png"
    assert closed.get("/about", Authorization=f"bearer {TOKEN}").status == 200


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9\xff",
    ],
)
def test_what_is_not_the_secret_is_refused(closed, given):
    assert closed.get("/about", Authorization=given).status == 401


def test_the_page_gets_a_cookie_that_no_script_and_no_other_site_can_use(closed, picture):
    cookie = cookie_of(closed)
    value, *attributes = cookie.split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} == set(attributes)
    assert TOKEN not in cookie
    assert closed.get("/about", Cookie=f"other=1; {value}").status == 200
    assert closed.get("/items/0/thumbnail", Cookie=value).status == 200
    assert closed.search(picture, Cookie=value).status == 200
    assert closed.get("/about", Cookie=value[:-1] + "\xe9").status == 401
    foreign = {"Cookie": value, "Origin": "http://evil.example"}
    assert closed.search(picture, **foreign).status == 403
    assert closed.ask("POST", "/login", headers={**BEARER, "Origin": "null"}).status == 403


def test_the_cookie_of_one_secret_does_not_open_another(catalogue, closed):
    value = cookie_of(closed).split("; ")[0]
    with serving(catalogue, token=TOKEN[::-1]) as other:
        assert other.get("/about", Cookie=value).status == 401


def test_without_a_secret_there_is_no_login(site):
    assert site.ask("POST", "/login").status in (404, 405)


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "ünïcödé-and-long"])
def test_a_secret_is_long_and_can_be_sent_in_a_header(catalogue, token):
    with pytest.raises(ValueError, match="at least 16 letters"):
        make_app(catalogue, token=token)


def test_an_address_for_others_needs_a_secret_or_the_word_public(index):
    with pytest.raises(ValueError, match=r"host must be.*--token.*--public"):
        serve(index, host="0.0.0.0", port=0)
    with pytest.raises(ValueError, match="one of --token and --public"):
        serve(index, host="0.0.0.0", port=0, token=TOKEN, public=True)


@pytest.mark.browser
def test_a_visitor_logs_in_once(browser, closed):
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"{closed.address}/#item=3")
        page.locator("#login").wait_for()
        assert page.locator("nav.tabs").is_hidden()
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.locator("#login-problem", has_text="not the secret").wait_for()
        page.fill("#token", TOKEN)
        page.click("#login button")
        page.wait_for_selector("#results ol.cards a")
        assert page.locator("#login").is_hidden()
        assert page.locator("#name").inner_text() == "characters"
        assert page.evaluate("document.cookie") == ""
        page.goto(f"{closed.address}/#map")
        page.reload()
        page.locator("#map-words", has_text="Every mark").wait_for()
        assert page.locator("#login").is_hidden()
    finally:
        context.close()
