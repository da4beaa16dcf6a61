"""Decoding by other processes: the same pixels as here, errors by name, nothing left behind."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from miniature import write_image

from weiss._base import images
from weiss._base.decoding import CHUNK, Decoders, PoolClosedError, collect
from weiss._base.images import Reduction


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{i}.jpg" for i in range(9)]
    for i, path in enumerate(paths):
        write_image(path, i % 3, i, size=(20 + 3 * i, 31))
    return paths


class Kept(bytearray):
    """A sink that keeps what it is given."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, given):
        with self.lock:
            self.extend(given)
            return len(self) - len(given)

    def image(self, decoded, position, channels=3):
        height, width = decoded.sizes[position]
        start = decoded.starts[position]
        data = bytes(self[start : start + height * width * channels])
        return np.frombuffer(data, dtype=np.uint8).reshape(height, width, channels)


@pytest.mark.parametrize(("channels", "side", "scaled"), [(1, 24, False), (3, 10, True)])
def test_pixels_are_those_of_this_process_in_the_order_of_the_files(photos, channels, side, scaled):
    kept, paths = Kept(), photos * 5
    assert len(paths) % CHUNK
    with Decoders(2, channels=channels, reduction=Reduction(side, scaled)) as decoders:
        decoded = collect(decoders.submit_all([*paths, "nothing.jpg"], kept))
    assert list(decoded.errors) == [len(paths)]
    assert (decoded.starts[-1], decoded.sizes[-1]) == (-1, (0, 0))
    for position, path in enumerate(paths):
        want = images.decode(path, channels, side, scaled=scaled)
        np.testing.assert_array_equal(kept.image(decoded, position, channels), want)


def test_the_shared_memory_grows_with_what_is_asked(photos, tmp_path):
    write_image(tmp_path / "large.jpg", 0, size=(900, 700))
    kept = Kept()
    with Decoders(1) as decoders:
        for paths in (photos[:1], [tmp_path / "large.jpg"], photos[1:3]):
            decoded = decoders.submit(paths, kept).result(timeout=60)
            for position, path in enumerate(paths):
                np.testing.assert_array_equal(kept.image(decoded, position), images.decode(path))


def test_bad_files_are_reported_and_the_good_ones_still_come(photos, tmp_path):
    empty = tmp_path / "empty\n\u00e9.jpg"  # a name with a line break does not break the protocol
    empty.write_bytes(b"")
    kept = Kept()
    with Decoders(1) as decoders:
        decoded = decoders.submit([photos[0], empty, photos[1]], kept).result(timeout=60)
        assert list(decoded.errors) == [1]
        assert decoded.errors[1] == f"{empty}: is empty (zero bytes)"
        np.testing.assert_array_equal(kept.image(decoded, 2), images.decode(photos[1]))
        nothing = decoders.submit([empty], kept).result(timeout=60)
        assert list(nothing.errors) == [0]


def test_a_sink_that_fails_fails_the_future_and_not_the_pool(photos):
    def full(given):
        raise OSError(28, "No space left on device")

    kept = Kept()
    with Decoders(1) as decoders:
        with pytest.raises(OSError, match="No space left"):
            decoders.submit(photos[:1], full).result(timeout=60)
        decoded = decoders.submit(photos[:1], kept).result(timeout=60)
        np.testing.assert_array_equal(kept.image(decoded, 0), images.decode(photos[0]))


def test_a_process_that_dies_fails_its_files_and_is_replaced(photos, monkeypatch):
    with Decoders(1) as decoders:
        start = decoders.pool.child

        def killed():
            child = start()
            os.kill(child.process.pid, signal.SIGKILL)
            return child

        with monkeypatch.context() as patched:
            patched.setattr(decoders.pool, "child", killed)
            answer = decoders.submit(photos[:1], len)
            with pytest.raises(RuntimeError, match=r"status -9.*use fewer workers"):
                answer.result(timeout=60)
        (child,) = decoders.pool.children
        assert decoders.submit(photos[:1], len).result(timeout=60).sizes == [(31, 20)]
        assert decoders.pool.children != {child}
        assert len(decoders.pool.children) == 1


def test_closing_ends_every_process_even_with_work_waiting(photos):
    decoders = Decoders(2)
    waiting = [decoders.submit(photos, len) for _ in range(50)]
    waiting[0].result(timeout=60)
    decoders.close()
    assert decoders.pool.children
    assert all(child.process.poll() is not None for child in decoders.pool.children)
    with pytest.raises(PoolClosedError):
        decoders.pool.child()


def test_a_script_without_a_main_guard_works(photos, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from weiss._base.decoding import CHUNK, Decoders, PoolClosedError, collect\n"
        "print('once')\n"
        "with Decoders(2) as decoders:\n"
        f"    print(decoders.submit([{str(photos[0])!r}], len).result().sizes)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["once", "[(31, 20)]"]


def test_a_child_imports_this_package_and_nothing_from_where_it_was_started(
    photos, tmp_path, monkeypatch
):
    (tmp_path / "PIL.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "json.py").write_text("raise SystemExit('nor this')")
    monkeypatch.chdir(tmp_path)
    # This process found the package otherwise, by the folder that it was started in for example.
    others = [place for place in sys.path if not os.path.isdir(os.path.join(place, "weiss"))]
    monkeypatch.setattr(sys, "path", others)
    with Decoders(1) as decoders:
        assert decoders.submit(photos[:1], len).result(timeout=60).sizes == [(31, 20)]


def test_ctrl_c_is_not_for_the_children(photos):
    with Decoders(1) as decoders:
        decoders.submit(photos[:1], len).result(timeout=60)
        (child,) = decoders.pool.children
        os.kill(child.process.pid, signal.SIGINT)
        assert decoders.submit(photos[1:2], len).result(timeout=60).errors == {}
        assert decoders.pool.children == {child}
