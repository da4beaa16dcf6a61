"""Tensors come back as they were written, or not at all."""

import errno
import os
import pickle
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weiss._base.tensor_files import DIGEST, DamagedFileError, on_host, read_tensors, write_tensors


def random_bits(shape, dtype, seed=0):
    """Any bits at all, NaN with a payload among them."""
    size = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    number = int(torch.tensor(shape).prod()) if shape else 1
    bits = torch.randint(256, (number * size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def same_bits(one, other):
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bits(one) == bits(other)


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
]


SHAPES = [(), (1,), (0,), (0, 3), (3, 0, 2), (7,), (2, 3, 5)]


def test_every_bit_comes_back(tmp_path):
    given = {f"{d} {s}": random_bits(s, d) for d in DTYPES for s in SHAPES}
    x = random_bits((2, 3, 4, 5), torch.float32)
    given |= {
        "truth": torch.tensor([True, False, True]),
        "complex": torch.tensor([1 + 2j, -0.0 - 1j]),
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 3),
        "every second": x[:, :, ::2],
        "expanded": x[:1].expand(6, -1, -1, -1),
        "shared": x,
        "a part": x[1:],
        "a view": x.view(6, 20),
        "a parameter": torch.nn.Parameter(torch.ones(2)),
    }
    given["a parameter"].sum().backward()
    write_tensors(tmp_path / "a", given, {})
    found, facts = read_tensors(tmp_path / "a")
    assert set(found) == set(given)
    assert all(same_bits(found[name], given[name].detach()) for name in given)
    assert all(tensor.is_contiguous() for tensor in found.values())
    assert not any(tensor.requires_grad for tensor in found.values())
    assert given["a parameter"].grad is not None
    assert facts == {}


def test_a_copy_on_the_host_shares_nothing():
    for tensor in (torch.zeros(2, 3), torch.zeros(3, 2).T, torch.zeros(2, requires_grad=True)):
        copy = on_host(tensor)
        copy += 1
        assert not tensor.any()
        assert not copy.requires_grad


def test_words_come_back_in_any_script_and_of_any_length(tmp_path):
    facts = {"plain": "word", "": "", "größe": "β ≈ 80 — 平均場 🧲", "json": '{"a": "\\n"}\n'}
    facts["long"] = "x" * 100_000
    write_tensors(tmp_path / "a", {"ü.0": torch.ones(1)}, facts)
    found, words = read_tensors(tmp_path / "a")
    assert list(found) == ["ü.0"]
    assert words == facts


def test_no_tensors_at_all_are_a_file_too_and_the_arguments_stay(tmp_path):
    tensors, facts = {}, {"only": "words"}
    write_tensors(tmp_path / "a", tensors, facts)
    assert read_tensors(tmp_path / "a") == (tensors, facts) == ({}, {"only": "words"})


# Damage

FACTS = '{"epoch": 3, "ü": null}'


def written(tmp_path):
    path = tmp_path / "whole"
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(3),
        "e": torch.empty(0, 3, dtype=torch.bfloat16),
    }
    write_tensors(path, tensors, {"facts": FACTS})
    return path.read_bytes(), tensors


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
    raw, tensors = written(tmp_path)
    name = raw.index(f'"{DIGEST}"'.encode()) + 1
    unnoticed = set()
    with (tmp_path / "whole").open("r+b", buffering=0) as file:
        for place, byte in enumerate(raw):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                try:
                    found, facts = read_tensors(tmp_path / "whole")
                except DamagedFileError:
                    continue
                unnoticed.add(place)
                assert all(same_bits(found[key], tensors[key]) for key in tensors)
                assert facts["facts"] == FACTS
            os.pwrite(file.fileno(), bytes([byte]), place)
    # The one blind spot: the checksum loses its name, and what is right is then not checked.
    assert unnoticed <= set(range(name, name + len(DIGEST)))
    assert read_tensors(tmp_path / "whole")[1] == {"facts": FACTS}


def test_a_file_that_is_cut_off_anywhere_is_noticed(tmp_path):
    raw, _ = written(tmp_path)
    for length in {*range(0, len(raw), 5), *range(12), len(raw) - 1}:
        (tmp_path / "a").write_bytes(raw[:length])
        with pytest.raises(ValueError, match=r"a is damaged or cut off \(\w.*\)\.") as caught:
            read_tensors(tmp_path / "a")
        assert type(caught.value) is DamagedFileError


def test_bytes_behind_the_data_or_zeros_in_them_are_noticed(tmp_path):
    """A power cut may leave a file of the right length with blocks that were never written."""
    write_tensors(tmp_path / "whole", {"x": random_bits((5000,), torch.float32)}, {})
    raw = (tmp_path / "whole").read_bytes()
    damaged = [raw + more for more in (b"\0", b"more", raw)]
    for block in range(len(raw) - 4096, 0, -4096):
        damaged.append(raw[:block] + bytes(4096) + raw[block + 4096 :])
    for content in damaged:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DamagedFileError, match="damaged"):
            read_tensors(tmp_path / "a")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"p":', b'"o":'),
        (b'"F32"', b'"I32"'),
        (b"[2,3]", b"[3,2]"),
        (b'"only":"words"', b'"only":"world"'),
        (b'"only":"words"', b'"on":"lywords"'),
    ],
)
def test_the_checksum_covers_names_dtypes_shapes_and_text(tmp_path, old, new):
    write_tensors(tmp_path / "a", {"p": torch.ones(2, 3)}, {"only": "words"})
    raw = (tmp_path / "a").read_bytes()
    assert raw.count(old) == 1
    (tmp_path / "a").write_bytes(raw.replace(old, new))
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        read_tensors(tmp_path / "a")


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_tensors(tmp_path / "nothing")


# Files of others


@pytest.mark.parametrize("words", [None, {"format": "pt"}, {"digest": "of somebody else"}])
def test_a_file_without_our_checksum_is_read_unless_it_must_be_ours(tmp_path, words):
    save_file({"x": torch.arange(3)}, tmp_path / "a", metadata=words)
    found, facts = read_tensors(tmp_path / "a")
    assert found["x"].tolist() == [0, 1, 2]
    assert facts == (words or {})
    with pytest.raises(DamagedFileError, match="no checksum"):
        read_tensors(tmp_path / "a", is_ours=True)


def test_others_can_read_our_files(tmp_path):
    from safetensors.torch import load_file

    write_tensors(tmp_path / "a", {"x": torch.arange(3)}, {"any": "word"})
    assert load_file(tmp_path / "a")["x"].tolist() == [0, 1, 2]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("how", ["pickle", "torch", "torch of old"])
def test_nothing_is_ever_unpickled(tmp_path, how):
    sprung, path = tmp_path / "sprung", tmp_path / "a.safetensors"
    if how == "pickle":
        path.write_bytes(pickle.dumps(Trap(sprung)))
    else:
        zipped = how == "torch"
        torch.save({"x": Trap(sprung)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DamagedFileError, match="damaged or cut off"):
        read_tensors(path)
    assert not sprung.exists()
    if how == "pickle":
        pickle.loads(path.read_bytes())
        assert sprung.exists(), "the trap must be one"


# Writing whole files


@pytest.fixture
def old(tmp_path):
    """The path of a file that must still be whole after the test, and alone in its folder."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(3)}, {"which": "old"})
    yield path
    tensors, facts = read_tensors(path)
    assert tensors["x"].tolist() == [1, 1, 1]
    assert facts == {"which": "old"}
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file_whole(old, monkeypatch):
    def half(tensors, file, metadata):
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(old, {"x": torch.zeros(3)}, {"which": "new"})


def test_what_cannot_be_written_leaves_the_old_file_whole(old):
    with pytest.raises(TypeError):
        write_tensors(old, {"x": torch.zeros(3)}, {"number": 3})
    with pytest.raises(NotImplementedError):
        write_tensors(old, {"x": torch.zeros(3, device="meta")}, {})


def test_a_file_that_grows_beyond_what_is_allowed_leaves_the_old_one_whole(old):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=f"{old} could not be written.*too large") as caught:
            write_tensors(old, {"x": torch.zeros(200_000)}, {"which": "new"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
