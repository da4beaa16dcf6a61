"""AdamW of touched rows: what a row without a gradient keeps, and what it owes."""

import copy
import math

import pytest
import torch
from torch import nn

from weiss.losses import lazy_adamw
from weiss.losses.lazy_adamw import TouchedRowsAdamW

SETTINGS = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}


def rates(steps):
    """A schedule: up, and down again."""
    return [0.05 * (1 + math.sin(step / 3)) for step in range(steps)]


def gradients(steps, rows=7, columns=3, share=0.4, dtype=torch.float64, seed=0):
    """Gradients ``(steps, C, D)`` of which a share of the rows is not zero; one row never is."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(steps, rows, columns, generator=generator, dtype=dtype)
    kept = torch.rand(steps, rows, generator=generator) < share
    kept[:, 1] = False
    return values * kept[..., None]


def start(rows=7, columns=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(99)
    return nn.Parameter(torch.randn(rows, columns, generator=generator, dtype=dtype))


def stepped(parameter, optimizer, steps, lr):
    for gradient, rate in zip(steps, lr, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def by_loops(values, steps, lr, betas, eps, weight_decay, settle=False):
    """From the definition, entry by entry; nothing is added up but the factors that are owed."""
    found = values.detach().clone()
    for row in range(values.shape[0]):
        touches, owed = 0, 1.0
        mean, square = [0.0] * values.shape[1], [0.0] * values.shape[1]
        for gradient, rate in zip(steps.tolist(), lr, strict=True):
            owed *= 1 - rate * weight_decay
            if all(entry == 0 for entry in gradient[row]):
                continue
            touches += 1
            for column, entry in enumerate(gradient[row]):
                mean[column] = betas[0] * mean[column] + (1 - betas[0]) * entry
                square[column] = betas[1] * square[column] + (1 - betas[1]) * entry**2
                up = mean[column] / (1 - betas[0] ** touches)
                down = math.sqrt(square[column] / (1 - betas[1] ** touches)) + eps
                found[row, column] = found[row, column] * owed - rate * up / down
            owed = 1.0
        if settle:
            found[row] *= owed
    return found


def test_a_row_that_every_step_touches_follows_adamw():
    steps, lr = gradients(300, share=1.1), rates(300)
    steps[:, 1] = 0.5
    one, two = start(), start()
    found = stepped(one, TouchedRowsAdamW([one], **SETTINGS), steps, lr)
    expected = stepped(two, torch.optim.AdamW([two], **SETTINGS), steps, lr)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("block", [1, 6, 2**19])
def test_rows_that_are_skipped_follow_the_definition(monkeypatch, settle, block):
    monkeypatch.setattr(lazy_adamw, "ELEMENTS", block)
    steps, lr = gradients(60), rates(60)
    parameter = start()
    optimizer = TouchedRowsAdamW([parameter], **SETTINGS)
    found = stepped(parameter, optimizer, steps, lr)
    if settle:
        optimizer.settle()
        optimizer.settle()  # nothing is owed twice
    expected = by_loops(start(), steps, lr, **SETTINGS, settle=settle)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_row_sees_only_the_steps_that_touched_it():
    """Without weight decay a skipped row is AdamW on a shorter sequence; AdamW lets it drift on."""
    settings = {**SETTINGS, "weight_decay": 0.0}
    steps, lr = gradients(40), rates(40)
    one, whole = start(), start()
    found = stepped(one, TouchedRowsAdamW([one], **settings), steps, lr)
    drifted = stepped(whole, torch.optim.AdamW([whole], **settings), steps, lr)
    for row in range(7):
        at = [step for step in range(40) if steps[step, row].any()]
        other = nn.Parameter(start().detach()[row : row + 1])
        alone = torch.optim.AdamW([other], **settings)
        shorter = stepped(other, alone, steps[at][:, row : row + 1], [lr[step] for step in at])
        torch.testing.assert_close(found[row : row + 1], shorter, rtol=1e-12, atol=1e-12)
        if at:
            assert (drifted[row] - found[row]).abs().max() > 0.05


def test_the_lengths_of_settled_idle_rows_are_those_of_adamw():
    steps, lr = gradients(50), rates(50)
    one, two = start(), start()
    optimizer = TouchedRowsAdamW([one], **SETTINGS)
    found = stepped(one, optimizer, steps, lr)
    assert found[1].equal(start().detach()[1])
    optimizer.settle()
    expected = stepped(two, torch.optim.AdamW([two], **SETTINGS), steps, lr)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-12, atol=0)


def test_settling_in_between_changes_nothing_but_rounding():
    steps, lr = gradients(60), rates(60)
    one, two = start(), start()
    plain, settled = TouchedRowsAdamW([one], **SETTINGS), TouchedRowsAdamW([two], **SETTINGS)
    for step, rate in zip(steps, lr, strict=True):
        stepped(one, plain, step[None], [rate])
        stepped(two, settled, step[None], [rate])
        settled.settle()
    plain.settle()
    torch.testing.assert_close(one.detach(), two.detach(), rtol=1e-12, atol=1e-12)


def test_the_decay_of_one_step_is_not_lost_beside_that_of_many():
    parameter = nn.Parameter(torch.ones(2, 1, dtype=torch.float32))
    optimizer = TouchedRowsAdamW([parameter], lr=1e-5, eps=1.0, weight_decay=0.1)
    parameter.grad = torch.tensor([[0.0], [1.0]])
    optimizer.step()
    optimizer.state[parameter]["decay"] -= 50.0  # as after fifty million steps
    optimizer.state[parameter]["decayed"] -= 50.0
    for _ in range(100):
        optimizer.step()
    optimizer.settle()
    assert parameter[0].item() == pytest.approx((1 - 1e-6) ** 101, abs=1e-7)


def test_rows_without_a_gradient_are_not_touched_and_nan_is_a_gradient():
    parameter = start(rows=5, dtype=torch.float32)
    before = parameter.detach().clone()
    optimizer = TouchedRowsAdamW([parameter], lr=0.1)
    parameter.grad = torch.zeros(5, 3)
    parameter.grad[1] = -0.0
    parameter.grad[2, 1] = math.nan
    parameter.grad[3, 2] = 1e-45  # the least that is not zero
    parameter.grad[4, 0] = -math.inf
    optimizer.step()
    assert parameter[:2].equal(before[:2])
    assert parameter[2].isnan().tolist() == [False, True, False]
    assert not parameter[3].equal(before[3])
    assert parameter[4].isnan().tolist() == [True, False, False]
    state = optimizer.state[parameter]
    assert state["touches"].tolist() == [0, 0, 1, 1, 1]
    assert not state["exp_avg"][:2].any()
    assert not state["exp_avg_sq"][:2].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_follow_double_precision(dtype):
    steps, lr = gradients(20, dtype=dtype), rates(20)
    one, two = start(), start()
    low = nn.Parameter(one.detach().to(dtype))
    found = stepped(low, TouchedRowsAdamW([low], **SETTINGS), steps, lr)
    expected = stepped(two, TouchedRowsAdamW([two], **SETTINGS), steps.double(), lr)
    limit = {torch.float16: 0.01, torch.bfloat16: 0.1, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit)


def test_a_shard_does_what_its_rows_do_in_the_whole():
    steps, lr = gradients(30), rates(30)
    whole = start()
    expected = stepped(whole, TouchedRowsAdamW([whole], **SETTINGS), steps, lr)
    for rows in (slice(0, 3), slice(3, 7)):
        shard = nn.Parameter(start().detach()[rows].clone())
        found = stepped(shard, TouchedRowsAdamW([shard], **SETTINGS), steps[:, rows], lr)
        assert found.equal(expected[rows])


@pytest.mark.parametrize("layout", ["transposed gradient", "transposed parameter", "empty"])
def test_any_layout_of_rows_will_do(layout):
    steps, lr = gradients(10), rates(10)
    two = start()
    expected = stepped(two, TouchedRowsAdamW([two], **SETTINGS), steps, lr)
    if layout == "transposed gradient":
        one = start()
        steps = steps.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "transposed parameter":
        one = nn.Parameter(start().detach().T.contiguous().T)
    else:
        one, steps, expected = (
            nn.Parameter(torch.ones(0, 3)),
            torch.ones(10, 0, 3),
            torch.ones(0, 3),
        )
    assert stepped(one, TouchedRowsAdamW([one], **SETTINGS), steps, lr).equal(expected)


def test_a_rate_may_be_a_tensor():
    steps, lr = gradients(10), rates(10)
    one, two = start(), start()
    tensors = [torch.tensor(rate, dtype=torch.float64) for rate in lr]
    found = stepped(one, TouchedRowsAdamW([one], **SETTINGS), steps, tensors)
    expected = stepped(two, TouchedRowsAdamW([two], **SETTINGS), steps, lr)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


# With other parameters in one optimiser


def pair():
    torch.manual_seed(3)
    return nn.Linear(4, 3), start(dtype=torch.float32)


def groups_of(network, fields):
    groups = [{"params": list(network.parameters()), "touched_rows": False}]
    return [*groups, {"params": [fields], "lr": 0.2}]


def test_a_group_of_other_parameters_is_adamw_to_the_last_bit():
    network, fields = pair()
    twin = copy.deepcopy(network)
    ours = TouchedRowsAdamW(groups_of(network, fields), lr=0.01, weight_decay=0.1)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    for _ in range(20):
        batch = torch.randn(5, 4)
        for model, optimizer in ((network, ours), (twin, theirs)):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
    assert all(a.equal(b) for a, b in zip(network.parameters(), twin.parameters(), strict=True))
    assert fields not in ours.state or not ours.state[fields]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_state_that_was_saved_goes_on_to_the_last_bit(dtype):
    network, fields = pair()
    fields = nn.Parameter(fields.detach().to(dtype))
    optimizer = TouchedRowsAdamW(groups_of(network, fields), **SETTINGS)
    steps, lr = gradients(30, dtype=dtype), rates(30)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    stepped(fields, optimizer, steps[:15], lr[:15])
    saved = copy.deepcopy(optimizer.state_dict())
    assert all(torch.is_tensor(v) for state in saved["state"].values() for v in state.values())
    network2, fields2 = copy.deepcopy((network, fields))
    again = TouchedRowsAdamW(groups_of(network2, fields2), **SETTINGS)
    again.load_state_dict(saved)
    kept = again.state[fields2]
    assert (kept["touches"].dtype, kept["decayed"].dtype) == (torch.int32, torch.float64)
    assert kept["decay"].dtype == torch.float64
    for parameter in network2.parameters():
        parameter.grad = torch.ones_like(parameter)
    one = stepped(fields, optimizer, steps[15:], lr[15:])
    two = stepped(fields2, again, steps[15:], lr[15:])
    assert one.equal(two)
    old, new = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert old.keys() == new.keys() == {0, 1, 2}
    assert all(old[index][key].equal(new[index][key]) for index in old for key in old[index])


def test_a_copy_of_the_optimiser_goes_on_alike():
    parameter = start()
    optimizer = TouchedRowsAdamW([parameter], **SETTINGS)
    steps, lr = gradients(20), rates(20)
    stepped(parameter, optimizer, steps[:10], lr[:10])
    twin, twins = copy.deepcopy((parameter, optimizer))
    found, expected = (
        stepped(p, o, steps[10:], lr[10:]) for p, o in ((twin, twins), (parameter, optimizer))
    )
    assert found.equal(expected)


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    parameter = start()
    optimizer = TouchedRowsAdamW([parameter], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = parameter[2].square().sum()
        loss.backward()
        return loss

    before = parameter.detach().clone()
    assert optimizer.step(closure) == before[2].square().sum()
    assert (parameter != before).any(dim=1).tolist() == [row == 2 for row in range(7)]


def test_a_scaler_of_gradients_leaves_out_a_step_that_overflowed():
    parameter = start(dtype=torch.float32)
    optimizer = TouchedRowsAdamW([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = start(dtype=torch.float32)
    other = TouchedRowsAdamW([expected], lr=0.1)
    for number, factor in enumerate((1.0, math.inf, 1.0)):
        optimizer.zero_grad()
        scaler.scale(parameter[number].sum() * factor).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if factor == 1.0:
            other.zero_grad()
            expected[number].sum().backward()
            other.step()
    assert parameter.equal(expected)


def test_a_parameter_without_a_gradient_takes_no_part():
    one, two = start(), start()
    optimizer = TouchedRowsAdamW([one, two], lr=0.1)
    one.grad = torch.ones_like(one)
    optimizer.step()
    optimizer.settle()
    assert two.equal(start())


# What is refused


@pytest.mark.parametrize(
    ("parameter", "arguments", "error", "message"),
    [
        (torch.ones(3), {}, ValueError, r"shape \(rows, columns\) .*\(3,\).*touched_rows=False"),
        (torch.ones(3, 2, 2), {}, ValueError, "parameters must have shape"),
        (torch.ones(3, 2).to_sparse(), {}, TypeError, "must be dense .*sparse_coo"),
        (torch.ones(3, 2, dtype=torch.cfloat), {}, TypeError, "floating point .*complex64"),
        (torch.ones(3, 2), {"lr": -1.0}, ValueError, "lr must be zero or more"),
        (torch.ones(3, 2), {"betas": (0.9, 1.0)}, ValueError, r"betas must be .*\(0.9, 1.0\)"),
        (torch.ones(3, 2), {"eps": -1.0}, ValueError, "eps must be zero or more"),
        (torch.ones(3, 2), {"weight_decay": -1.0}, ValueError, "weight_decay must be zero"),
        (torch.ones(3, 2), {"lr": 10.0, "weight_decay": 0.1}, ValueError, "must be below 1"),
    ],
)
def test_what_it_cannot_mean_is_refused(parameter, arguments, error, message):
    with pytest.raises(error, match=message):
        TouchedRowsAdamW([nn.Parameter(parameter)], **arguments)


def test_a_refused_group_is_not_added():
    optimizer = TouchedRowsAdamW([start()])
    with pytest.raises(ValueError, match="parameters must have shape"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = TouchedRowsAdamW(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="gradients must be dense .*sparse=False"):
        optimizer.step()


def test_a_schedule_that_turns_weights_around_is_refused():
    parameter = start()
    optimizer = TouchedRowsAdamW([parameter], weight_decay=0.5)
    with pytest.raises(ValueError, match="must be below 1 .*lr=3 and weight_decay=0.5"):
        stepped(parameter, optimizer, gradients(1), [3.0])


def test_without_triton_the_portable_version_is_used(monkeypatch):
    monkeypatch.setattr(lazy_adamw.importlib.util, "find_spec", lambda _: None)
    assert not lazy_adamw._runs_triton.__wrapped__(0)


def test_the_state_of_another_optimiser_is_refused():
    fields = torch.nn.Parameter(torch.ones(3, 2))
    plain = torch.optim.AdamW([fields])
    fields.sum().backward()
    plain.step()
    with pytest.raises(ValueError, match="must be of a TouchedRowsAdamW; .*fresh state"):
        TouchedRowsAdamW([fields]).load_state_dict(plain.state_dict())
