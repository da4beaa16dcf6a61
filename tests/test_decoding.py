"""Decoding by other processes: the same pixels as here, errors by name, nothing left behind."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from miniature import write_image

from weiss import images
from weiss.decoding import Decoders, memory_file, write_at


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{i}.jpg" for i in range(9)]
    for i, path in enumerate(paths):
        write_image(path, i % 3, i, size=(20 + 3 * i, 31))
    return paths


def pixels_of(file, decoded, position, channels=3):
    height, width = decoded.sizes[position]
    data = os.pread(file.fileno(), height * width * channels, decoded.starts[position])
    return np.frombuffer(data, dtype=np.uint8).reshape(height, width, channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_this_process(photos, channels):
    with memory_file() as file, Decoders(2, [file], channels=channels, short_side=24) as decoders:
        parts = [decoders.submit(photos[i : i + 2]) for i in range(0, 9, 2)]
        for i, part in zip(range(0, 9, 2), parts, strict=True):
            decoded = part.result(timeout=60)
            for position, path in enumerate(photos[i : i + 2]):
                np.testing.assert_array_equal(
                    pixels_of(file, decoded, position, channels), images.decode(path, channels, 24)
                )


def test_images_lie_one_after_the_other_without_gaps(photos):
    with memory_file() as file, Decoders(2, [file]) as decoders:
        done = [decoders.submit([path]).result(timeout=60) for path in photos]
        spans = sorted((d.starts[0], d.starts[0] + d.sizes[0][0] * d.sizes[0][1] * 3) for d in done)
        assert [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])]
        assert decoders.end() == spans[-1][1]


def test_bad_files_are_reported_and_the_good_ones_still_come(photos, tmp_path):
    empty = tmp_path / "empty\n\u00e9.jpg"  # a name with a line break does not break the protocol
    empty.write_bytes(b"")
    with memory_file() as file, Decoders(1, [file]) as decoders:
        decoded = decoders.submit([photos[0], empty, photos[1]]).result(timeout=60)
        assert list(decoded.errors) == [1]
        assert decoded.errors[1] == f"{empty}: is empty (zero bytes)"
        np.testing.assert_array_equal(pixels_of(file, decoded, 2), images.decode(photos[1]))


def test_a_file_is_reused_from_its_start(photos):
    with memory_file() as one, memory_file() as two, Decoders(1, [one, two]) as decoders:
        decoders.submit(photos[:3], 1).result(timeout=60)
        decoders.rewind(1)
        decoded = decoders.submit(photos[3:5], 1).result(timeout=60)
        assert decoded.starts[0] == 0
        assert decoders.end(0) == 0
        np.testing.assert_array_equal(pixels_of(two, decoded, 1), images.decode(photos[4]))


def test_a_process_that_dies_is_noticed(photos):
    with memory_file() as file, Decoders(1, [file]) as decoders:
        decoders.submit(photos[:1]).result(timeout=60)
        os.kill(decoders._children[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="ended with status -9.*use fewer workers"):
            decoders.submit(photos[1:2]).result(timeout=60)


def test_closing_ends_every_process_even_with_work_waiting(photos):
    with memory_file() as file:
        decoders = Decoders(2, [file])
        waiting = [decoders.submit(photos) for _ in range(50)]
        waiting[0].result(timeout=60)
        decoders.close()
        assert all(child.poll() is not None for child in decoders._children)


def test_a_script_without_a_main_guard_works(photos, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from weiss.decoding import Decoders, memory_file\n"
        "print('once')\n"
        "with memory_file() as file, Decoders(2, [file]) as decoders:\n"
        f"    print(decoders.submit([{str(photos[0])!r}]).result().sizes)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["once", "[(31, 20)]"]


def test_a_decoding_process_does_not_load_torch():
    code = "import sys, weiss.decoding; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_writing_at_a_place_writes_all(tmp_path):
    with (tmp_path / "a").open("w+b") as file:
        pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
        assert write_at(file.fileno(), pixels, 100) == 256
        assert os.pread(file.fileno(), 256, 100) == pixels.tobytes()
