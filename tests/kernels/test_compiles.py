"""Every Triton kernel compiles for a GPU, also where there is none.

The interpreter takes Python that the compiler does not. It must not be chosen here, so this file is
also a program: it calls the kernels' callers with a launch that compiles instead of running, and
prints what came of it. Values are then those of uninitialised memory, and nobody looks at them.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


def _type(value):
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        return "i32" if abs(value) < 2**31 else "i64"
    return "fp32"


def _compile_everything():
    """Print ``{kernel: [what is wrong with one of its specialisations, ...]}``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    done, wrong = set(), {}

    def run(
        self, *given, grid=None, warmup=False, num_warps=4, num_stages=3, maxnreg=None, **named
    ):
        signature, constants = {}, {}
        values = {**dict(zip(self.arg_names, given, strict=False)), **named}
        for parameter in self.params:
            value = values[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[parameter.name] = "constexpr"
                constants[(parameter.num,)] = value
            else:
                signature[parameter.name] = _type(value)
        name = self.fn.__name__
        key = name, str(signature), str(constants), num_warps, num_stages, maxnreg
        if key in done:
            return
        done.add(key)
        problems = wrong.setdefault(name, [])
        try:
            kernel = triton.compile(
                ASTSource(self, signature, constants),
                target=GPUTarget("cuda", 90, 32),
                options={"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg},
            )
            if kernel.metadata.shared > 227 * 1024:
                problems.append(f"{constants}: {kernel.metadata.shared} bytes of shared memory")
        except Exception as error:
            problems.append(f"{constants}: {error!r}")

    JITFunction.run = run
    _call_everything()
    print(json.dumps({"kernels": wrong, "expected": sorted(_launched())}))


def _launched():
    """Names of the kernels that are launched: those that no other kernel calls."""
    from triton.runtime.jit import JITFunction

    from weiss.kernels import cosine_programs, half_programs, near_programs, pair_programs, programs

    kernels = {}
    for module in (programs, cosine_programs, half_programs, near_programs, pair_programs):
        for name, member in vars(module).items():
            if isinstance(member, JITFunction):
                kernels[name] = member.src
    called = {
        name
        for name in kernels
        for other, source in kernels.items()
        if other != name and re.search(rf"\b{name}\(", source)
    }
    return {*kernels, "_update_rows"} - called


def _call_everything():
    import weiss
    from weiss.kernels import choice, fused, near, screened
    from weiss.kernels.lazy_adamw import update_rows
    from weiss.kernels.problem import Problem, Shard
    from weiss.theory.membership import members_of_a_batch

    choice._interprets = lambda: True  # so that the CPU will do
    choose_large = fused.LARGE
    product = torch.mm

    def multiply(left, right, out_dtype=None, out=None):
        return product(left.float(), right.float(), out=out)

    torch.mm = multiply  # which on a CPU knows no out_dtype

    def step(name, batch, num_classes, size, large=False, dtype=torch.float32, **options):
        fused.LARGE = 0 if large else choose_large
        loss = weiss.make_loss(name, num_classes, size, impl="triton", check=False, **options)
        x = torch.randn(batch, size, dtype=dtype, requires_grad=True)
        loss(x, torch.randint(num_classes, (batch,))).backward()

    for name in ("mf_contrastive", "mf_cwms", "mf_binomial"):
        step(name, 180, 100, 512)
        step(name, 180, 100, 512, large=True, average="samples")
        step(name, 180, 100, 512, large=True, products="bfloat16")
    step("mf_cwms", 20, 5000, 48)  # larger tiles, and a size that is no power of two
    torch.set_float32_matmul_precision("high")
    step("mf_contrastive", 180, 100, 512, dtype=torch.bfloat16)

    x, labels, fields = torch.randn(180, 512), torch.randint(100, (180,)), torch.randn(100, 512)
    members = members_of_a_batch(labels, x, 100, "", check=True)
    loss = weiss.make_loss("mf_contrastive", 100, 512)
    problem = Problem(loss.interactions, "cosine", "classes", skips=True)
    wanted = {"wants_embeddings": True, "wants_fields": True}
    screened.LISTS_PAY = math.inf  # the lists of random fields may be long
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        screened.screened(problem, x, fields, members, Shard(0, 100), **wanted)

    near.PAYS = dict.fromkeys(near.PAYS, math.inf)
    near.PARTS, near.BLOCK, near.SHARE = 1, 128, 4
    for average in ("classes", "samples"):
        problem = Problem(loss.interactions, "cosine", average, skips=True)
        near.near(problem, x, fields, labels, Shard(0, 100), **wanted)
    x, fields, labels = torch.randn(1, 512), torch.randn(300, 512), torch.zeros(1).long()
    near.near(problem, x, fields, labels, Shard(0, 300), **wanted)
    unwanted = dict.fromkeys(wanted, False)
    near.near(problem, x, fields[:1], labels, Shard(0, 1), **unwanted)

    for dtype in (torch.float32, torch.bfloat16):
        rows = [torch.zeros(100, 512, dtype=dtype) for _ in range(4)]
        counts = torch.zeros(100, dtype=torch.int32), torch.zeros(100).double()
        decay = torch.zeros((), dtype=torch.float64)
        update_rows(*rows, *counts, decay, lr=0.1, betas=(0.9, 0.99), eps=1e-8)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the compiler says of each kernel; and which kernels there are."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    cache = str(tmp_path_factory.mktemp("compiled"))
    environment = {**os.environ, "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kernel_is_tried(compiled):
    assert set(compiled["kernels"]) == set(compiled["expected"])
    assert len(compiled["expected"]) > 8


def test_every_kernel_compiles_and_fits_its_memory(compiled):
    assert {name: wrong for name, wrong in compiled["kernels"].items() if wrong} == {}


if __name__ == "__main__":
    _compile_everything()
