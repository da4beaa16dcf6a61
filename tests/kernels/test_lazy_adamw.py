"""The kernel of touched rows is the portable version: in Triton's interpreter, and on a GPU.

The interpreter must be chosen before triton is imported, so this file is also a program: it takes
the steps of `CASES` with the kernel, on the CPU, and saves what comes of them.
"""

import math
import subprocess
import sys

import pytest
import torch

from weiss.losses import lazy_adamw
from weiss.losses.lazy_adamw import update_in_blocks

CASES = {
    "some rows": {"share": 0.3},
    "every row": {"share": 1.1},
    "no row": {"share": -1.0},
    "one column": {"columns": 1},
    "a row wider than a program": {"columns": 2049, "rows": 3},
    "many programs": {"rows": 300, "columns": 33, "share": 0.05},
    "one row": {"rows": 1},
    "double": {"dtype": torch.float64},
    "half": {"dtype": torch.float16},
    "nan": {"special": True},
    "no first moment": {"betas": (0.0, 0.9)},
}
STEPS = 6


def case(rows=21, columns=12, share=0.4, dtype=torch.float32, special=False, betas=(0.8, 0.95)):
    """Return a parameter, its gradients ``(STEPS, C, D)``, its state, and the betas."""
    generator = torch.Generator().manual_seed(rows + columns)
    parameter = torch.randn(rows, columns, generator=generator).to(dtype)
    gradients = torch.randn(STEPS, rows, columns, generator=generator).to(dtype)
    gradients *= (torch.rand(STEPS, rows, 1, generator=generator) < share).to(dtype)
    if special:
        gradients[2, 3:6] = 0
        gradients[2, 3, 1] = math.nan
        gradients[2, 4] = -0.0
        gradients[2, 5, 2] = 1e-45
    state = {
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
        "touches": torch.zeros(rows, dtype=torch.int32),
        "decayed": torch.zeros(rows, dtype=torch.float64),
        "decay": torch.zeros((), dtype=torch.float64),
    }
    return parameter, gradients, state, betas


def taken(update, name, device="cpu"):
    """Take the steps of a case; return all that they have changed."""
    parameter, gradients, state, betas = case(**CASES[name])
    parameter, gradients = parameter.to(device), gradients.to(device)
    state = {key: value.to(device) for key, value in state.items()}
    for number, gradient in enumerate(gradients):
        rate = 0.05 * (number + 1)
        state["decay"] += math.log1p(-rate * 0.3)
        update(parameter, gradient, state, rate, betas, 1e-6)
    return {"parameter": parameter.cpu(), **{key: value.cpu() for key, value in state.items()}}


def assert_alike(found, expected):
    for key in ("touches", "decayed", "decay"):
        assert found[key].equal(expected[key]), key
    dtype = expected["parameter"].dtype
    limit = {torch.float16: 2e-3, torch.float32: 3e-6, torch.float64: 1e-12}[dtype]
    for key in ("parameter", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(
            found[key], expected[key], rtol=limit, atol=limit, equal_nan=True, msg=key
        )
    idle = expected["touches"] == 0
    assert found["parameter"][idle].equal(expected["parameter"][idle])


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_the_portable_version(interpreted, name):
    assert_alike(interpreted[name], taken(update_in_blocks, name))


def test_no_kernel_is_made_before_a_step_on_a_gpu():
    code = (
        "import torch; from weiss.losses.lazy_adamw import TouchedRowsAdamW\n"
        "p = torch.nn.Parameter(torch.ones(3, 2)); p.grad = torch.ones(3, 2)\n"
        "TouchedRowsAdamW([p]).step()\n"
        "import sys; print('weiss.kernels.lazy_adamw' in sys.modules)\n"
        "import weiss.kernels.lazy_adamw as kernels; print(kernels.tl)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "None"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_the_portable_version_on_a_gpu(name):
    assert_alike(taken(lazy_adamw._update_in_one_pass, name, "cuda"), taken(update_in_blocks, name))


@pytest.mark.gpu
def test_the_portable_version_is_the_same_on_a_gpu():
    found = taken(update_in_blocks, "some rows", "cuda")
    assert_alike(found, taken(update_in_blocks, "some rows"))


@pytest.mark.gpu
def test_a_recorded_step_follows_gradients_and_rate():
    """A graph replays the step, and the host is never asked."""
    values, gradients, _, _ = case(rows=300, columns=33, share=0.1)
    found = {}
    for way in ("plain", "recorded"):
        parameter = torch.nn.Parameter(values.cuda())
        parameter.grad = torch.zeros_like(parameter)
        rate = torch.tensor(0.05, dtype=torch.float64, device="cuda")
        optimizer = lazy_adamw.TouchedRowsAdamW([parameter], lr=rate, weight_decay=0.3)
        assert lazy_adamw._runs_triton(0)
        optimizer.step()  # lays out the state and compiles the kernel
        if way == "recorded":
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            before = optimizer.state[parameter]["decay"].clone()
            with torch.cuda.graph(graph):
                optimizer.step()
            assert optimizer.state[parameter]["decay"].equal(before)  # recorded, not done
        for number, gradient in enumerate(gradients):
            parameter.grad.copy_(gradient)
            rate.fill_(0.05 * (number + 1))
            if way == "recorded":
                graph.replay()
            else:
                optimizer.step()
        state = optimizer.state[parameter]
        found[way] = {"parameter": parameter.detach().cpu(), "decay": state["decay"].cpu()}
        found[way]["touches"] = state["touches"].cpu()
    assert all(found["plain"][key].equal(found["recorded"][key]) for key in found["plain"])
    assert found["plain"]["touches"].any()


@pytest.mark.gpu
def test_a_step_on_a_gpu_never_waits_for_it():
    parameter = torch.nn.Parameter(torch.ones(100, 8, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = lazy_adamw.TouchedRowsAdamW([parameter], lr=0.1)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    torch.save({name: taken(lazy_adamw._update_in_one_pass, name) for name in CASES}, sys.argv[1])
