"""Untrusted uploads are decoded in other processes: one that costs too much is ended alone."""

import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from anyio.from_thread import start_blocking_portal
from PIL import Image, ImageFile
from server.hostile import encoded, png_of, scanned, tiled
from server.served import serving
from tiny import wait_until

import weiss.server.decoders
from weiss._base import images
from weiss._base.decoder import RefusedUpload, UploadSettings, read_upload
from weiss.server import Limits
from weiss.server.decoders import UploadDecoders
from weiss.server.limits import UnavailableError

LONG = 60.0
BRIEF = 0.4
"""Seconds: less than `slow` takes."""


@pytest.fixture(scope="module")
def slow():
    """A small file that takes a second or more, as large and with as many scans as it may be."""
    content = scanned(6300, images.MAX_SCANS)
    assert len(content) < 200_000
    return content


def order(**changes):
    given = {"channels": 3, "short_side": 32, "max_pixels": 40_000_000, "max_side": 20_000}
    return UploadSettings(**(given | {"seconds": LONG, "memory": 2**30} | changes))


@contextmanager
def workers(number=1, max_large=32, **changes):
    """Decoders in an event loop of their own; ``decode`` returns a future."""
    decoders = UploadDecoders(number, order(**changes), max_large)
    with start_blocking_portal() as portal, closing(decoders):

        def decode(content, client="", seconds=LONG):
            return portal.start_task_soon(decoders.decode, content, client, seconds)

        yield SimpleNamespace(decode=decode, close=decoders.close)


def kind_of(answer):
    """Wait for an answer that is a refusal, and return its kind."""
    with pytest.raises(RefusedUpload) as refused:
        answer.result(LONG)
    return refused.value.kind


def children():
    """The processes that this one has started and that live."""
    return {child.pid for child in psutil.Process().children()}


def test_a_picture_comes_out_as_it_does_here(picture):
    photo = encoded(Image.effect_noise((300, 200), 60).convert("RGB"), "JPEG")
    with workers() as pool:
        for content in (picture, photo):
            pixels, size = pool.decode(content).result(LONG)
            assert np.array_equal(pixels, images.decode(content, 3, 32))
            assert pixels.flags.writeable
        assert size == (300, 200)


def test_a_photo_is_decoded_at_a_fraction_of_its_size_where_the_network_was_trained_so():
    photo = encoded(Image.effect_noise((300, 200), 60).convert("RGB"), "JPEG")
    usual, scaled = (read_upload(photo, order(scaled=scaled)) for scaled in (False, True))
    assert usual[0] == scaled[0] == [300, 200, 32, 48]
    assert usual[1] != scaled[1] == images.decode(photo, 3, 32, scaled=True).tobytes()


def test_a_process_stays_for_the_next_picture_and_ends_with_the_pool(picture):
    before = children()
    with workers(2) as pool:
        pool.decode(picture).result(LONG)
        (mine,) = children() - before
        for _ in range(5):
            pool.decode(picture).result(LONG)
        assert mine in children()
        assert len(children() - before) <= 2
    assert children() - before == set()


def test_a_picture_that_takes_too_long_is_ended_and_the_next_one_is_decoded(slow, picture):
    with workers(seconds=BRIEF) as pool:
        assert kind_of(pool.decode(slow)) == "slow"
        assert pool.decode(picture).result(LONG)[1] == (32, 32)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="RLIMIT_AS holds on Linux")
def test_a_picture_that_needs_too_much_memory_is_refused_and_the_next_one_is_decoded(picture):
    large = encoded(Image.new("RGB", (6000, 6000)), "PNG", compress_level=1)
    with workers(memory=100 * 2**20) as pool:
        assert kind_of(pool.decode(large)) == "memory"
        assert pool.decode(picture).result(LONG)[1] == (32, 32)


def test_a_process_that_dies_of_a_picture_is_replaced(slow, picture):
    before = children()
    with workers() as pool:
        pool.decode(picture).result(LONG)
        before = children()
        answer = pool.decode(slow)
        wait_until(lambda: children() - before)
        (mine,) = children() - before
        child = psutil.Process(mine)
        wait_until(lambda: child.cpu_times().user > 0.3)  # in the middle of it
        child.kill()
        assert kind_of(answer) == "broken"
        assert pool.decode(picture).result(LONG)[1] == (32, 32)


def test_closing_ends_what_is_being_decoded_at_once(slow):
    before = children()
    with workers() as pool:
        answers = [pool.decode(slow) for _ in range(3)]
        wait_until(lambda: children() - before)
        pool.close()
        for answer in answers:
            with pytest.raises((UnavailableError, CancelledError)):
                answer.result(LONG)
        with pytest.raises(UnavailableError):
            pool.decode(slow).result(LONG)
    assert children() - before == set()


def test_small_and_refused_pictures_do_not_wait_for_large_ones(slow, picture):
    with workers() as pool:
        large = [pool.decode(slow) for _ in range(3)]
        assert kind_of(pool.decode(png_of(7000, 7000))) == "large"
        assert kind_of(pool.decode(scanned(64, images.MAX_SCANS + 1))) == "scans"
        assert pool.decode(picture).result(LONG)[1] == (32, 32)
        assert not any(answer.done() for answer in large)


def test_more_large_pictures_than_may_wait_are_sent_away_and_small_ones_are_not(slow, picture):
    with workers(max_large=2) as pool:
        large = [pool.decode(slow) for _ in range(2)]
        with pytest.raises(UnavailableError, match="2 large pictures are under way"):
            pool.decode(slow).result(LONG)
        assert pool.decode(picture).result(LONG)[1] == (32, 32)
        assert large[1].cancel()  # which frees its place
        again = pool.decode(slow)
        pool.decode(picture).result(LONG)
        assert not again.done()


def test_clients_take_turns(slow):
    large = encoded(Image.new("L", (2100, 2100)), "PNG")
    ended = []
    with workers() as pool:

        def decode(name, content, client):
            answer = pool.decode(content, client)
            answer.add_done_callback(lambda _: ended.append(name))
            return answer

        answers = [decode("slow", slow, "one")]
        answers += [decode(f"one {number}", large, "one") for number in range(3)]
        answers += [decode(f"two {number}", large, "two") for number in range(2)]
        for answer in answers:
            answer.result(LONG)
    assert ended[0] == "slow"
    assert {*ended[1:3]} == {"one 0", "two 0"}
    assert {*ended[3:5]} == {"one 1", "two 1"}


def test_a_picture_whose_header_takes_too_long_is_tried_again_among_the_large_ones(
    slow, picture, monkeypatch
):
    monkeypatch.setattr(weiss.server.decoders, "QUICK_SECONDS", 0.02)
    # Segments that are read one after the other, before the first line of the picture.
    content = encoded(Image.new("L", (8, 8)), "JPEG")
    content = content[:2] + b"\xff\xe9\x00\x02" * 100_000 + content[2:]
    with workers() as pool:
        assert pool.decode(content).result(LONG)[1] == (8, 8)


def test_who_finds_no_decoder_free_in_time_is_told_to_come_back(picture, monkeypatch):
    may_start, start = threading.Event(), weiss.server.decoders.start_child

    def start_late(*given, **options):
        may_start.wait(LONG)
        return start(*given, **options)

    monkeypatch.setattr(weiss.server.decoders, "start_child", start_late)
    with workers() as pool:
        pool.decode(picture)
        with pytest.raises(UnavailableError, match="all were busy"):
            pool.decode(picture, seconds=0.1).result(LONG)
        may_start.set()


@pytest.mark.parametrize(
    ("kind", "options", "number"),
    [
        ("PNG", {}, 0),
        ("JPEG", {}, 1),
        ("JPEG", {"progressive": True}, 10),
        ("JPEG", {"restart_marker_blocks": 1}, 1),
    ],
)
def test_scans_are_counted_without_decoding(kind, options, number):
    content = encoded(Image.effect_noise((64, 64), 90).convert("RGB"), kind, **options)
    assert images.scans(content) == number
    # What stands behind a picture (a film, another picture) is not of it.
    assert images.scans(content + b"\xff\xda" * 500) == number
    if kind == "JPEG":  # nor is a small picture in its metadata
        note = b"\xff\xe1" + (2 + 600).to_bytes(2, "big") + b"\xff\xda" * 300
        assert images.scans(content[:2] + note + content[2:]) == number


def test_nothing_is_decoded_of_a_picture_that_is_refused(monkeypatch):
    bombs = {
        "large": [png_of(7000, 7000)],
        "scans": [scanned(64, images.MAX_SCANS + 1)],
        "kind": [tiled(100), b"P3\n9 9\n255\n" + b"#\n" * 99, b"II*\0", b"words"],
    }
    seen = []

    def load(image):
        seen.append(image)
        raise OSError

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    for kind, contents in bombs.items():
        for content in contents:
            with pytest.raises(RefusedUpload) as refused:
                read_upload(content, order())
            assert refused.value.kind == kind
    assert seen == []
    with pytest.raises(RefusedUpload):  # and this is how it would be noticed
        read_upload(scanned(64, images.MAX_SCANS), order())
    assert seen


def test_items_are_searched_for_while_pictures_take_too_long(catalogue, slow, picture):
    # All processes are busy and all places of large pictures taken; items need neither.
    limits = Limits(seconds=BRIEF, max_uploads=8, max_waiting=1)
    with serving(catalogue, limits) as site, ThreadPoolExecutor(4) as visitors:
        answers = [visitors.submit(site.search, slow) for _ in range(4)]
        site.wait_for("weiss_uploads 4.0")
        assert site.get("/items/0/neighbours").status == 200
        assert site.get("/healthz").status == 200
        assert {answer.result(LONG).status for answer in answers} <= {408, 503}
        refused = []  # a process that has just started may not be ready in time: 503
        wait_until(lambda: refused.append(site.search(slow)) or refused[-1].status == 408)
        assert "decoded within 0.4 seconds" in refused[-1].detail
        wait_until(lambda: site.search(picture).status == 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGBA", "PNG", {"compress_level": 1}),
        ("I;16", "PNG", {"compress_level": 1}),
        ("RGB", "JPEG", {"progressive": True, "subsampling": 0}),
        ("CMYK", "JPEG", {}),
        ("RGBA", "WEBP", {"lossless": True, "method": 0}),
        ("RGB", "AVIF", {"speed": 10}),
        ("P", "GIF", {}),
        ("RGB", "BMP", {}),
    ],
)
def test_every_picture_within_the_limits_fits_into_the_memory(mode, kind, options):
    turned = Image.Exif()
    turned[images.ORIENTATION] = 6
    content = encoded(Image.new(mode, (6324, 6324)), kind, exif=turned, **options)
    limits = Limits()
    with workers(seconds=limits.seconds, memory=limits.decoder_memory) as pool:
        assert pool.decode(content).result(LONG)[1] == (6324, 6324)
