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


def _compile_everything(each_once):
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
            # As at a launch, where a 1 is a constant too.
            is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or is_one:
                signature[parameter.name] = "constexpr"
                constants[(parameter.num,)] = value
            else:
                signature[parameter.name] = _type(value)
        name = self.fn.__name__
        if each_once and name in wrong:
            return
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
    _call_everything(size=64 if each_once else 512)
    print(json.dumps({"kernels": wrong, "expected": sorted(_launched())}))


def _launched():
    """Names of the kernels that are launched: those that no other kernel calls."""
    from triton.runtime.jit import JITFunction

    from weiss.kernels import (
        fused_bfloat16_programs,
        fused_programs,
        fused_rest_programs,
        fused_sublattices,
        near_pairs,
        nearest_chunks,
    )

    kernels = {}
    programs = (fused_programs, fused_bfloat16_programs, fused_rest_programs, fused_sublattices)
    for module in (*programs, near_pairs, nearest_chunks):
        for name, member in vars(module).items():
            if isinstance(member, JITFunction):
                kernels[name] = member.src
    called = {
        name
        for name in kernels
        for other, source in kernels.items()
        if other != name and re.search(rf"\b{name}\(", source)
    }
    return kernels.keys() - called


def _call_everything(size):
    import weiss
    from weiss.kernels import near_pairs, nearest_chunks, plan
    from weiss.kernels.problem import Problem, Shard, Task
    from weiss.losses.by_name import FAMILIES
    from weiss.theory.interactions import closed_form_of

    plan._interprets = lambda: True  # so that the CPU will do
    small = plan.SMALL_DISTANCES
    product = torch.mm

    def multiply(left, right, out_dtype=None, out=None):
        return product(left.float(), right.float(), out=out)

    torch.mm = multiply  # which on a CPU knows no out_dtype

    def step(name, batch, num_classes, size, large=False, dtype=torch.float32, **options):
        plan.SMALL_DISTANCES = 0 if large else small
        loss = weiss.make_loss(name, num_classes, size, impl="triton", check=False, **options)
        x = torch.randn(batch, size, dtype=dtype, requires_grad=True)
        loss(x, torch.randint(num_classes, (batch,))).backward()

    for name in (f"mf_{family}" for family in FAMILIES):
        if closed_form_of(weiss.make_loss(name, 1, 1).interactions) is None:
            continue
        step(name, 180, 100, size)
        step(name, 180, 100, size, large=True, average="samples")
        if name != "mf_rest_ms":
            step(name, 180, 100, size, matmul_dtype="bfloat16")
    for average in ("classes", "none"):
        half = {"keeps": "half", "over": "all", "divides_by": "all", "average": average}
        step("mf_rest_ms", 180, 100, size, large=average == "none", **half)
    for each in (3, 4, 12):
        step("mf_cwms", 180, 100, size, fields_per_class=each)
    step("mf_rest_ms", 20, 5000, 48)
    step("mf_cwms", 20, 5000, 48)  # larger tiles, and a size that is no power of two
    torch.set_float32_matmul_precision("high")
    step("mf_contrastive", 180, 100, size, dtype=torch.bfloat16)

    x, labels, fields = torch.randn(180, size), torch.randint(100, (180,)), torch.randn(100, size)
    interactions = weiss.make_loss("mf_contrastive", 100, size).interactions
    near_pairs.PAYS = dict.fromkeys(near_pairs.PAYS, math.inf)
    near_pairs.MOST_PARTS, near_pairs.MARKED_CLASSES, near_pairs.WORDS_A_PART = 1, 128, 4
    for average in ("classes", "samples"):
        problem = Problem(interactions, "cosine", average)
        near_pairs.near_pairs("large", Task(problem, x, fields, labels, Shard(0, 100)))
    x, fields, labels = torch.randn(1, size), torch.randn(300, size), torch.zeros(1).long()
    near_pairs.near_pairs("large", Task(problem, x, fields, labels, Shard(0, 300)))
    half = torch.zeros(600, size).half()
    nearest_chunks.maxima(half[:150], half, 300)
    one = torch.zeros(1).long()
    for dtype in (torch.float32, torch.float64):
        items = torch.zeros(300, size, dtype=dtype)
        for bias in (None, items[:, 0]):
            nearest_chunks.exact_scores(items[:1], items, bias, one, one[None])
    value_only = Task(problem, x, fields[:1], labels, Shard(0, 1), False, False)
    near_pairs.near_pairs("large", value_only)


@pytest.fixture(scope="module", params=["once", pytest.param("all", marks=pytest.mark.slow)])
def compiled(request, tmp_path_factory):
    """The compiler's errors for each kernel, once or in all its specialisations; all kernels."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    cache = str(tmp_path_factory.mktemp("compiled"))
    environment = {**os.environ, "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, __file__, request.param],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kernel_is_tried(compiled):
    assert set(compiled["kernels"]) == set(compiled["expected"])
    assert len(compiled["expected"]) > 8


def test_every_kernel_compiles_and_fits_its_memory(compiled):
    assert {name: wrong for name, wrong in compiled["kernels"].items() if wrong} == {}


if __name__ == "__main__":
    _compile_everything(each_once="once" in sys.argv)
