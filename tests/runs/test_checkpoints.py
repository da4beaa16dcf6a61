"""The last two states stay, the newest whole one is found, and nothing else is mistaken for one."""

import os
import warnings

import pytest
import torch
from tiny import damage

from weiss._base.tensor_files import write_tensors
from weiss.runs.checkpoints import Checkpoints, State


def state(number):
    tensors = {"weight": torch.full((2, 3), float(number)), "steps": torch.tensor(number)}
    odd = [None, 0.1 + 0.2, 1e-300, 2**63 + 1, float("inf"), "β"]
    return State(tensors, {"position": {"step": number}, "history": odd})


def saved(folder, *steps):
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.save(step, state(step))
    return checkpoints


def steps_of(checkpoints):
    return [int(path.stem) for path in checkpoints.files()]


def test_a_state_comes_back_as_it_was(tmp_path):
    found = saved(tmp_path, 7).newest()
    assert found.facts == state(7).facts
    assert found.tensors.keys() == state(7).tensors.keys()
    assert all(torch.equal(found.tensors[k], v) for k, v in state(7).tensors.items())


def test_before_the_first_state_there_is_none_and_no_folder(tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "a" / "state"))
    assert checkpoints.newest() is None
    assert checkpoints.files() == []
    assert not checkpoints.folder.parent.exists()
    checkpoints.save(0, state(0))
    assert steps_of(checkpoints) == [0]


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for number, step in enumerate((0, 3, 10, 200, 999_999_999, 1_000_000_000)):
        before = steps_of(checkpoints)
        checkpoints.save(step, state(step))
        assert steps_of(checkpoints) == [*before, step][-2:]
        assert len(list(tmp_path.iterdir())) == min(number + 1, 2)
        assert checkpoints.newest().facts["position"]["step"] == step


def test_a_state_saved_twice_is_the_later_one(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.save(2, State({"x": torch.ones(1)}, {"again": True}))
    assert steps_of(checkpoints) == [1, 2]
    assert checkpoints.newest().facts == {"again": True}


def test_order_is_by_the_number_of_steps_not_by_name_or_time(tmp_path):
    for name, number in (("2", 2), ("10", 10), ("000000009", 9), ("9000000000", 9_000_000_000)):
        write_tensors(tmp_path / f"{name}.safetensors", {}, {"facts": f'{{"step": {number}}}'})
    for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda path: int(path.stem))):
        os.utime(path, (1e9 - age, 1e9 - age))  # the newest state has the oldest file
    checkpoints = Checkpoints(tmp_path)
    assert steps_of(checkpoints) == [2, 9, 10, 9_000_000_000]
    assert checkpoints.newest().facts == {"step": 9_000_000_000}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "20.safetensors is damaged or cut off"),
        ({}, "20.safetensors holds no state. The state before it is used."),
        ({"facts": "{"}, "20.safetensors holds no state. The state before it is used."),
    ],
)
def test_a_file_that_is_no_state_is_passed_over(tmp_path, content, message):
    checkpoints = saved(tmp_path, 10, 20)
    path = checkpoints.files()[-1]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_tensors(path, {"x": torch.ones(1)}, content)
    with pytest.warns(UserWarning, match=message):
        assert checkpoints.newest().facts["position"]["step"] == 10


def test_a_damaged_state_behind_a_whole_one_is_not_looked_at(tmp_path):
    checkpoints = saved(tmp_path, 10, 20)
    damage(checkpoints.files()[0])
    assert checkpoints.newest().facts["position"]["step"] == 20  # without a warning


def test_when_all_are_damaged_the_run_cannot_go_on(tmp_path):
    checkpoints = saved(tmp_path, 10, 20)
    for path in checkpoints.files():
        damage(path)
    with (
        warnings.catch_warnings(record=True, action="always") as told,
        pytest.raises(ValueError, match=r"must be whole to resume; all 2 are damaged. Start"),
    ):
        checkpoints.newest()
    said = [str(warning.message) for warning in told]
    assert ["The state before it is used" in line for line in said] == [True, False]


def test_going_on_from_the_state_before_replaces_the_damaged_one(tmp_path):
    checkpoints = saved(tmp_path, 10, 20)
    damage(checkpoints.files()[-1])
    checkpoints.save(15, state(15))
    assert steps_of(checkpoints) == [15, 20]
    with pytest.warns(UserWarning, match="20.safetensors is damaged"):
        assert checkpoints.newest().facts["position"]["step"] == 15
    checkpoints.save(20, state(20))
    checkpoints.save(25, state(25))
    assert steps_of(checkpoints) == [20, 25]
    assert checkpoints.newest().facts["position"]["step"] == 25


def test_leftovers_and_foreign_files_are_neither_read_nor_removed(tmp_path):
    foreign = [
        ".000000030.safetensors.0a1b2c3d.tmp",  # a write that was killed
        "000000030.safetensors.tmp",
        "000000030.pt",
        "best.safetensors",
        "-5.safetensors",
        "3.5.safetensors",
        "1e9.safetensors",
        ".safetensors",
        "².safetensors",
        "notes.txt",
    ]
    for name in foreign:
        (tmp_path / name).write_bytes(b"whatever")
    checkpoints = saved(tmp_path, 5, 6, 7)
    assert steps_of(checkpoints) == [6, 7]
    assert checkpoints.newest().facts["position"]["step"] == 7
    assert set(foreign) <= {path.name for path in tmp_path.iterdir()}


def test_facts_that_json_cannot_say_leave_the_states_as_they_were(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoints.save(3, State({}, {"tensor": torch.ones(1)}))
    assert steps_of(checkpoints) == [1, 2]
