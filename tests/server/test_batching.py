"""Searches that come together go together, and each gets its own answer."""

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from PIL import Image
from server.served import serving
from tiny import wait_until

from weiss.server import Limits
from weiss.server.batching import Batcher
from weiss.server.limits import UnavailableError

LONG = 60.0


@pytest.fixture(scope="module")
def photos(pictures):
    """Pixels of one file of each of 12 classes, and their names."""
    paths = sorted(pictures.glob("*/5.png"))[:12]
    return [
        (f"{path.parent.name}/{path.name}", np.asarray(Image.open(path).convert("RGB")))
        for path in paths
    ]


@pytest.fixture
def batcher_of():
    """A function that makes a batcher, and a list of the sizes of its forward passes."""
    with ExitStack() as ending:

        def make(**limits):
            sizes = []
            batcher = Batcher(Limits(**limits), sizes.append)
            ending.callback(batcher.close)
            return batcher, sizes

        yield make


def hold(ending, batcher, number):
    """Take some places, as visitors do who are still uploading."""
    for _ in range(number):
        ending.enter_context(batcher.searches.take())


def names(future):
    return [hit.item.name for hit in future.result(LONG)]


def test_searches_under_way_share_one_forward_pass_and_each_gets_its_own_answer(
    batcher_of, photos, catalogue
):
    batcher, sizes = batcher_of(gather_seconds=LONG)
    wanted = [1, 100, 7, *[3] * (len(photos) - 3)]
    with ExitStack() as ending:
        hold(ending, batcher, len(photos))
        answers = [
            batcher.picture(catalogue, pixels, k)
            for k, (_, pixels) in zip(wanted, photos, strict=True)
        ]
        found = [answer.result(LONG) for answer in answers]
    assert sizes == [len(photos)]
    assert [len(hits) for hits in found] == wanted
    for hits, (name, pixels) in zip(found, photos, strict=True):
        assert hits[0].item.name == name
        (alone,) = catalogue.search(catalogue.embed([pixels]), len(hits))
        similarities = [hit.similarity for hit in hits]
        assert np.allclose(similarities, [hit.similarity for hit in alone], atol=1e-5)


def test_a_visitor_alone_does_not_wait_and_a_pass_goes_without_those_who_take_too_long(
    batcher_of, photos, catalogue
):
    batcher, _ = batcher_of(gather_seconds=100 * LONG)
    with batcher.searches.take():
        batcher.picture(catalogue, photos[0][1], 1).result(LONG)  # which raises if it waits
    batcher, sizes = batcher_of(gather_seconds=0.05)
    with batcher.searches.take(), batcher.searches.take():  # one of them uploads for ever
        assert names(batcher.picture(catalogue, photos[0][1], 1)) == [photos[0][0]]
    assert sizes == [1]


def test_no_pass_is_larger_than_the_limit(batcher_of, photos, catalogue):
    batcher, sizes = batcher_of(gather_seconds=LONG, max_batch=5)
    with ExitStack() as ending:
        hold(ending, batcher, 10)
        answers = [batcher.picture(catalogue, pixels, 1) for _, pixels in photos[:10]]
        assert [names(answer) for answer in answers] == [[name] for name, _ in photos[:10]]
    assert sizes == [5, 5]


def test_items_and_pictures_are_searched_for_together(batcher_of, photos, catalogue):
    batcher, sizes = batcher_of(gather_seconds=LONG)
    (item,) = catalogue.items_of(None, 50, 1)
    with ExitStack() as ending:
        hold(ending, batcher, 2)
        known = batcher.item(catalogue, item.id, 4)
        seen = batcher.picture(catalogue, photos[0][1], 4)
        assert names(seen)[0] == photos[0][0]
        assert item.name not in names(known)
        assert len(names(known)) == 4
    assert sizes == [1]  # an item needs no forward pass


@pytest.mark.parametrize(
    "broken", [np.zeros((0, 5, 3), np.uint8), np.zeros((4, 4, 7), np.uint8), np.zeros(3)]
)
def test_a_picture_that_breaks_does_not_break_the_others(batcher_of, photos, catalogue, broken):
    batcher, _ = batcher_of(gather_seconds=LONG)
    with ExitStack() as ending:
        hold(ending, batcher, 3)
        first = batcher.picture(catalogue, photos[0][1], 1)
        bad = batcher.picture(catalogue, broken, 1)
        last = batcher.picture(catalogue, photos[1][1], 1)
        assert names(first) == [photos[0][0]]
        assert names(last) == [photos[1][0]]
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the network says of it
            bad.result(LONG)
    assert batcher.is_alive


def test_who_has_gone_away_is_not_embedded(batcher_of, photos, catalogue):
    batcher, sizes = batcher_of(gather_seconds=LONG)
    with batcher.searches.take(), batcher.searches.take():
        gone = batcher.picture(catalogue, photos[0][1], 1)
        assert gone.cancel()
        assert names(batcher.picture(catalogue, photos[1][1], 1)) == [photos[1][0]]
    assert sizes == [1]
    with pytest.raises(CancelledError):
        gone.result(LONG)


def test_a_search_that_waits_too_long_is_told_to_those_who_ask_for_health(catalogue, held_search):
    with serving(catalogue, Limits(seconds=0.2)) as site:
        assert site.get("/healthz").status == 200
        assert site.get("/items/0/neighbours").status == 503  # and it is still searched for
        wait_until(lambda: site.get("/healthz").status == 503)
        answer = site.get("/healthz")
        assert "one has waited for" in answer.detail
        assert answer.headers["retry-after"] == "1"
        held_search.set()
        wait_until(lambda: site.get("/healthz").status == 200)


def test_pictures_on_their_way_are_waited_for_and_take_no_place_of_a_search(
    batcher_of, photos, catalogue
):
    batcher, sizes = batcher_of(gather_seconds=LONG, max_waiting=2)
    with batcher.announced.take(), batcher.announced.take():
        assert batcher.searches.taken == 0
        answers = [batcher.picture(catalogue, pixels, 1) for _, pixels in photos[:2]]
        assert [names(answer) for answer in answers] == [[name] for name, _ in photos[:2]]
    assert sizes == [2]


def test_closing_answers_what_was_asked_and_takes_no_more(batcher_of, photos, catalogue):
    batcher, _ = batcher_of(gather_seconds=0.2)
    with ExitStack() as ending:
        hold(ending, batcher, 5)
        answers = [batcher.picture(catalogue, pixels, 1) for _, pixels in photos[:4]]
        batcher.close()
        assert [names(answer) for answer in answers] == [[name] for name, _ in photos[:4]]
    assert not batcher.is_alive
    with pytest.raises(UnavailableError):
        batcher.picture(catalogue, photos[0][1], 1)


def test_visitors_at_once_are_answered_in_fewer_passes_each_its_own(catalogue, pictures):
    files = sorted(pictures.glob("*/2.png"))[:24]
    with serving(catalogue, Limits(gather_seconds=0.5)) as site:
        start = threading.Barrier(len(files))

        def search(path):
            start.wait(LONG)
            return site.search(path.read_bytes(), "/search?k=1").json["results"][0]["name"]

        with ThreadPoolExecutor(len(files)) as visitors:
            found = list(visitors.map(search, files))
        text = site.get("/metrics").body.decode()
        site.wait_for("weiss_waiting 0.0")
    assert found == [f"{path.parent.name}/{path.name}" for path in files]
    passes = float(text.split("weiss_batch_size_count ")[1].split()[0])
    assert passes < len(files)


@pytest.mark.parametrize("name", ["max_bytes", "seconds", "max_batch"])
def test_limits_that_nothing_could_pass_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be positive; got 0"):
        Limits(**{name: 0})
