"""The fused kernels in Triton's interpreter.

The interpreter must be chosen before triton is imported, so this file is also a program: it
computes every case with the kernels, on the CPU, and saves the results.
"""

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from weiss.losses.rest_multi_similarity import PROXY_ANCHOR

sys.path.append(str(Path(__file__).parent.parent))  # when run as a program
from budgets import (
    FUSED,
    GENTLE,
    LargestTensor,
    assert_equal_to,
    assert_within_budget,
    clustered,
    errors,
    found,
    found_alone,
    refusal,
    with_fields,
)

PATHS = ("small", "large")
BATCHES = {
    "a few": {"shape": (9, 20, 8)},
    "many of one class": {"shape": (36, 40, 20), "same": 20},
    "few samples": {"shape": (5, 130, 16)},
    "one of everything": {"shape": (1, 1, 3)},
    "more samples than classes": {"shape": (12, 3, 40)},
    "all classes": {"shape": (9, 9, 5), "all_classes": True},
    "zero vectors": {"shape": (9, 20, 5), "zeros": True},
    "many blocks": {"shape": (25, 157, 123), "same": 9},
    "two fields": {"shape": (9, 20, 8), "same": 3, "several": 2},
    "two fields, one of everything": {"shape": (1, 1, 3), "several": 2},
    "three fields, long vectors": {"shape": (15, 71, 123), "same": 9, "several": 3},
    "five fields, zero vectors": {"shape": (9, 20, 5), "zeros": True, "several": 5},
}


def batch_of(shape, each=0, several=1, **more):
    """Return a batch: with `each`, so many samples a class; with `several`, so many fields."""
    samples, num_classes, size = shape
    embeddings, labels, fields = clustered(samples, num_classes * several, size, **more)
    if several > 1:
        labels, fields = labels // several, fields.view(num_classes, several, size)
    if each:
        labels = torch.arange(len(labels)) // each
        embeddings = embeddings + fields[labels]
    return embeddings, labels, fields


def _cases():
    """Yield names of cases, and what they are: everything that the kernels are asked.

    The interpreter is slow, so what two losses share is not asked of both.
    """
    for name in FUSED:
        for path in PATHS:
            here = {"name": name, "path": path}
            for average in ("classes", "samples"):
                yield f"{name}, {path}, {average}", {**here, "batch": "a few", "average": average}
            average = "classes" if path == "small" else "samples"
            its_own = {"mf_contrastive": "small", "mf_binomial": "large"}.get(name, path)
            for batch in BATCHES:
                is_plain = batch != "a few" and "several" not in BATCHES[batch]
                if is_plain and its_own == path:
                    yield (
                        f"{name}, {path}, {batch}",
                        {**here, "batch": batch, "average": average},
                    )
    name = "mf_cwms"
    a_few = {"name": name, "path": "small", "batch": "a few"}
    for dtype in (torch.float16, torch.bfloat16):
        yield f"{name}, {dtype}", {**a_few, "dtype": dtype}
    yield "factor", {**a_few, "path": "large", "factor": -2.5}
    yield "constraint", {**a_few, "more": {"reg_weight": 0.7}}
    yield "unchecked", {**a_few, "more": {"check": False}}
    name = "mf_rest_ms"
    steep = {"alpha": 80.0, "beta": 1000.0, "delta": 1.2, "margin": 0.5, "over": "all"}
    for path, keeps in itertools.product(PATHS, ("full", "half")):  # over all classes
        here = {"name": name, "path": path, "batch": "many blocks", "average": "none"}
        anchor = {**PROXY_ANCHOR, "keeps": keeps}
        yield f"{name}, {path}, {keeps}, sums", {**here, "more": anchor}
        steep["keeps"] = keeps
        here["average"] = "samples" if path == "small" else "classes"
        yield f"{name}, {path}, {keeps}, steep", {**here, "more": {**steep}}
        present = {"keeps": keeps, "over": "present"}
        yield f"{name}, {path}, {keeps}, present", {**here, "more": present}
    yield from _cases_of_several_fields()


def _cases_of_several_fields():
    """Yield the same with several fields a class, which have one path."""
    two, one_of_all, long, zeros = (name for name in BATCHES if "fields" in name)
    for name, batch, average, gamma, more in (
        ("mf_contrastive", two, "classes", 80.0, {}),
        ("mf_contrastive", zeros, "samples", 4.0, {}),
        ("mf_cwms", two, "classes", 1e-3, {"reg_weight": 0.7}),
        ("mf_cwms", one_of_all, "samples", 80.0, {}),
        ("mf_cwms", long, "classes", 4.0, {}),
        ("mf_cwms", zeros, "samples", 80.0, {}),
        ("mf_rest_ms", two, "samples", 4.0, {"keeps": "half", "over": "present"}),
        ("mf_rest_ms", long, "none", 80.0, {**PROXY_ANCHOR, "keeps": "full"}),
        ("mf_rest_ms", zeros, "classes", 4.0, {"keeps": "full", "over": "present"}),
    ):
        more = {**more, "fields_gamma": gamma}
        here = {"name": name, "path": "large", "batch": batch, "average": average, "more": more}
        yield f"{name}, {batch}, {average}, gamma {gamma:g}", here


CASES = dict(_cases())
NARROW_BATCHES = {
    "one class in two tiles": {"shape": (44, 140, 17), "same": 40},
    "threes": {"shape": (40, 140, 16), "each": 3},
    "each alone": {"shape": (34, 140, 16), "each": 1},
    "more samples than classes": {"shape": (12, 3, 40)},
    "one of everything": {"shape": (1, 1, 3)},
}
NARROW = [
    (name, batch, average)
    for name in FUSED
    if name != "mf_rest_ms"  # of which no kernel has such products
    for batch, average in zip(NARROW_BATCHES, ("classes", "samples") * 3, strict=False)
    if name == "mf_cwms" or batch == "threes"
]
NARROW += [
    ("mf_cwms", "threes", "classes"),
    ("mf_contrastive", "one class in two tiles", "classes"),
]
FAR = [("mf_cwms", "threes"), ("mf_cwms", "one class in two tiles")]
"""Where the largest exponent is 120."""
MANY_FIELDS = (8, 32, 3)
STRIDES = {
    "a slice of columns": lambda x: torch.cat([x, x, x], dim=1)[:, x.shape[1] : 2 * x.shape[1]],
    "a transposed matrix": lambda x: x.T.contiguous().T,
    "every other row": lambda x: x.repeat_interleave(2, dim=0)[::2],
}
WRONG = {
    "too large": lambda x, labels: (x, labels.index_fill(0, torch.tensor([3]), 20)),
    "negative": lambda x, labels: (x, labels.index_fill(0, torch.tensor([0]), -1)),
    "nan": lambda x, labels: (x.index_fill(0, torch.tensor([2]), torch.nan), labels),
    "infinite": lambda x, labels: (x.index_fill(0, torch.tensor([8]), torch.inf), labels),
}
WANTED = [
    ("mf_contrastive", "small", "embeddings"),
    ("mf_contrastive", "large", "fields"),
    ("mf_binomial", "small", "nothing"),
    ("mf_cwms", "small", "embeddings"),
    ("mf_cwms", "small", "fields"),
    ("mf_cwms", "large", "embeddings"),
    ("mf_cwms", "large", "fields"),
    ("mf_cwms", "large", "nothing"),
    ("mf_rest_ms", "small", "nothing"),
    ("mf_rest_ms", "large", "embeddings"),
    ("mf_rest_ms", "large", "fields"),
    ("mf_rest_ms", "large", "nothing"),
    ("mf_cwms", "two fields", "fields"),
    ("mf_rest_ms", "two fields", "nothing"),
]


def computed(
    impl,
    name,
    batch,
    path=None,
    average="classes",
    factor=1.0,
    dtype=torch.float32,
    more=None,
    precision=None,
):
    """Compute a case; with `precision` in that, from the same numbers."""
    embeddings, classes, fields = batch_of(**BATCHES[batch])
    embeddings = embeddings.to(dtype)
    if precision is not None:
        embeddings, fields = embeddings.to(precision), fields.to(precision)
    settings = {**GENTLE[name], "average": average, "impl": impl, **(more or {})}
    return found(with_fields(name, fields, **settings), embeddings, classes, factor)


def narrow(impl, name, batch, average, precision=torch.float32, **options):
    """Compute with factors that half precision holds, so that only the slopes are rounded."""
    embeddings, classes, fields = batch_of(**NARROW_BATCHES[batch])
    signs = [torch.sign(tensor) + (tensor == 0) for tensor in (embeddings, fields)]
    size = 2 ** round(math.log2(embeddings.shape[1]) / 2)
    embeddings, fields = ((tensor / size).to(precision) for tensor in signs)
    settings = {**GENTLE[name], "average": average, "impl": impl, **options}
    return found(with_fields(name, fields, **settings), embeddings, classes)


def a_few(impl, name, batch="a few"):
    """Return a loss and its batch."""
    embeddings, labels, fields = batch_of(**BATCHES[batch])
    return with_fields(name, fields, impl=impl, **GENTLE[name]), embeddings, labels


def one_wanted(impl, name, path, wanted):
    """Compute with one of two gradients wanted, or none."""
    batch = "a few" if path in PATHS else path
    return found_alone(*a_few(impl, name, batch), wanted)


def largest(impl, name):
    """Return the bytes of the largest tensor of a step, with few samples and short vectors."""
    embeddings, labels, fields = batch_of(MANY_FIELDS, several=2)
    loss = with_fields(name, fields, impl=impl, **GENTLE[name])
    with LargestTensor() as found:
        loss(embeddings.requires_grad_(), labels).backward()
    return found.nbytes


def strided(impl, name, how):
    loss, embeddings, labels = a_few(impl, name)
    x = STRIDES[how](embeddings).detach().requires_grad_()
    assert x.stride() != embeddings.stride()
    value = loss(x, labels)
    return [value.detach(), *torch.autograd.grad(value, [x, loss.fields])]


def refused(impl, name, what):
    loss, *batch = a_few(impl, name)
    return refusal(loss, *WRONG[what](*batch))


def overwritten():
    """Go back again after somebody has written to the labels."""
    loss, embeddings, labels = a_few("triton", "mf_contrastive")
    value = loss(embeddings.requires_grad_(), labels)
    value.backward(retain_graph=True)
    labels += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        value.backward()
    return str(caught.value)


def again(name):
    """Go back twice through one graph."""
    loss, embeddings, labels = a_few("triton", name)
    x = embeddings.requires_grad_()
    value = loss(x, labels)
    factors = (torch.ones(()), torch.full((), 3.0))
    return [torch.autograd.grad(value, [x, loss.fields], by, True) for by in factors]


# The program


def _interpret(path):
    """Take every case with the kernels."""
    from weiss.kernels import fused, fused_rest, plan

    torch.set_num_threads(1)
    # Fewer programs of smaller steps: more would do nothing, slowly, and a batch would be one step.
    fused.PROGRAMS, fused.CHUNK = 3, 32
    fused_rest.CHUNK, fused_rest.SAMPLES = 4, 4
    small = plan.SMALL_DISTANCES
    results = {}

    def choose(way, batch="a few"):
        samples, classes, _ = BATCHES[batch]["shape"]
        several = BATCHES[batch].get("several", 1)
        parts = 5 if several == 1 else 2  # with several, distances to classes need room too
        plan.SMALL_DISTANCES = 0 if way == "large" else small
        fused.LEAST_BLOCK_DISTANCES = 1
        # The last block is not full.
        fused.MOST_BLOCK_DISTANCES = max(samples * classes * several // parts, 1)

    for case, settings in CASES.items():
        choose(settings["path"], settings["batch"])
        results[case] = computed("triton", **settings)
    for name, way, wanted in WANTED:
        choose(way, "a few" if way in PATHS else way)
        results[name, way, wanted] = one_wanted("triton", name, way, wanted)
    fused.LEAST_BLOCK_DISTANCES = fused.MOST_BLOCK_DISTANCES = MANY_FIELDS[0] * MANY_FIELDS[1] - 1
    results["largest"] = largest("triton", "mf_rest_ms")
    choose("small")
    for how in STRIDES:
        results[how] = strided("triton", "mf_contrastive", how)
    for what in WRONG:
        results[what] = refused("triton", "mf_contrastive", what)
    results["again"] = again("mf_contrastive")
    results["overwritten"] = overwritten()
    fused.MATMUL_DTYPE = torch.float16  # products of bfloat16 are wrong in the interpreter
    fused.BFLOAT16_TILE = {"ROWS": 32, "COLUMNS": 32, "STEP": 16}
    fused.SHARES = 2
    for case in NARROW:
        samples, _, _ = NARROW_BATCHES[case[1]]["shape"]
        fused.LEAST_BLOCK_DISTANCES = 128 * samples
        fused.MOST_BLOCK_DISTANCES = 64 * samples
        results[case] = narrow("triton", *case, matmul_dtype="bfloat16")
    fused.MATMUL_DTYPE = torch.float32  # which has the exponents of bfloat16, as float16 has not
    for name, batch in FAR:
        samples, _, _ = NARROW_BATCHES[batch]["shape"]
        fused.LEAST_BLOCK_DISTANCES = 128 * samples
        fused.MOST_BLOCK_DISTANCES = 64 * samples
        far = {"matmul_dtype": "bfloat16", "beta": 200.0, "delta": 0.6}
        results[name, batch, "far"] = narrow("triton", name, batch, "classes", **far)
    torch.save(results, path)


# The tests


@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_the_plain_formula(interpreted, case):
    settings = CASES[case]
    truth = computed("reference", **settings, precision=torch.float64)
    plain = computed("reference", **settings)
    assert [a.dtype for a in interpreted[case]] == [a.dtype for a in plain]
    assert all(tensor.isfinite().all() for tensor in interpreted[case])
    # The interpreter cuts bits off a bfloat16, where a GPU rounds.
    cut = torch.finfo(torch.bfloat16).eps / 2 if plain[1].dtype == torch.bfloat16 else 0.0
    assert_within_budget(interpreted[case], plain, truth, slack=5e-6 + cut)


@pytest.mark.parametrize(("name", "batch", "average"), NARROW)
def test_narrow_products_lose_no_more_than_half_precision_does(interpreted, name, batch, average):
    truth = narrow("reference", name, batch, average, torch.float64)
    results = interpreted[name, batch, average]
    assert all(tensor.isfinite().all() for tensor in results)
    # A direction, a slope and, where classes have several samples, an exponential are rounded.
    assert max(errors(results, truth)) < 4 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize(("name", "batch"), FAR)
def test_narrow_products_know_large_exponents(interpreted, name, batch):
    far = {"beta": 200.0, "delta": 0.6}
    truth = narrow("reference", name, batch, "classes", torch.float64, **far)
    assert max(errors(interpreted[name, batch, "far"], truth)) < 1e-4


@pytest.mark.parametrize(("name", "path", "wanted"), WANTED)
def test_either_gradient_may_be_wanted_alone(interpreted, name, path, wanted):
    results = interpreted[name, path, wanted]
    expected = one_wanted("reference", name, path, wanted)
    for a, b in zip(results, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


def test_with_several_fields_nothing_of_size_batch_by_classes_is_kept(interpreted):
    samples, num_classes, size = MANY_FIELDS
    assert 8 * num_classes * size <= interpreted["largest"] < 4 * samples * num_classes


@pytest.mark.parametrize("how", STRIDES)
def test_rows_may_lie_anywhere(interpreted, how):
    expected = strided("reference", "mf_contrastive", how)
    assert_equal_to(interpreted[how], expected, relative=2e-5)


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused_in_the_same_words(interpreted, what):
    assert interpreted[what] == refused("reference", "mf_contrastive", what)


def test_a_kept_graph_can_be_gone_back_through_again(interpreted):
    once, thrice = interpreted["again"]
    expected = interpreted["mf_contrastive, small, classes"][1:]
    for a, b, c in zip(once, thrice, expected, strict=True):
        assert a.equal(c)
        torch.testing.assert_close(b, 3 * a)


def test_labels_written_to_before_they_are_read_again_are_noticed(interpreted):
    assert "modified" in interpreted["overwritten"]


def test_the_budget_would_notice_a_digit():
    """A kernel that kept six bits less would be seen."""
    truth = computed("reference", "mf_cwms", "a few", precision=torch.float64)
    plain = computed("reference", "mf_cwms", "a few")
    coarse = [tensor * (1 + 1e-5) for tensor in plain]
    assert max(errors(plain, truth)) < 5e-6
    with pytest.raises(AssertionError, match="the plain formula"):
        assert_within_budget(coarse, plain, truth, slack=5e-6)


if __name__ == "__main__":
    _interpret(sys.argv[1])
