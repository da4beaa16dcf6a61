"""What can only be seen on a CUDA device."""

import contextlib
import copy
import gc
import math
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from budgets import (
    FUSED,
    GENTLE,
    MEAN_FIELD,
    OURS,
    assert_within_budget,
    clustered,
    found,
    same_bits,
    with_fields,
)
from torch.nn.functional import normalize

import weiss
from weiss.evaluation import neighbours, screening
from weiss.kernels import cuda_graphs, plan
from weiss.kernels.problem import Problem
from weiss.losses.rest_multi_similarity import PROXY_ANCHOR

pytestmark = pytest.mark.gpu


@contextlib.contextmanager
def synchronisation(mode):
    """Let CUDA warn of, or refuse, every operation that makes the host wait."""
    with warnings.catch_warnings(action="ignore"):  # the mode announces itself as a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def tf32():
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def sums_in_float16():
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False


def take_the_large_path(monkeypatch, block=2**16):
    """Multiply in the library, in several blocks, also where the problem is small."""
    fused = pytest.importorskip("weiss.kernels.fused")
    monkeypatch.setattr(plan, "SMALL_DISTANCES", 0)
    monkeypatch.setattr(fused, "MOST_BLOCK_DISTANCES", block)
    monkeypatch.setattr(fused, "LEAST_BLOCK_DISTANCES", block)


def near_pairs_pay(monkeypatch):
    """Compute only near pairs, however many they are, in several blocks."""
    near_pairs = pytest.importorskip("weiss.kernels.near_pairs")
    monkeypatch.setattr(near_pairs, "PAYS", dict.fromkeys(near_pairs.PAYS, math.inf))
    monkeypatch.setattr(near_pairs, "MARKED_CLASSES", 256)
    monkeypatch.setattr(near_pairs, "WORDS_A_PART", 8)


def near_pairs_do_not_pay(monkeypatch):
    near_pairs = pytest.importorskip("weiss.kernels.near_pairs")
    monkeypatch.setattr(near_pairs, "PAYS", dict.fromkeys(near_pairs.PAYS, -1.0))


def placed(name="mf_contrastive", shape=(180, 300, 64), **options):
    """A loss with the fields of a clustered batch, and the batch, on the device."""
    embeddings, labels, fields = clustered(*shape, same=9)
    return with_fields(name, fields, **options).cuda(), embeddings.cuda(), labels.cuda()


def warmed_up(step):
    """Take a step three times on another stream, as torch asks before it is captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)


def batch(multi_hot=False):
    torch.manual_seed(0)
    labels = torch.randint(50, (64,))
    if multi_hot:
        labels = torch.nn.functional.one_hot(labels, 50) | torch.nn.functional.one_hot(
            labels.flip(0), 50
        )
    return torch.randn(64, 32).cuda(), labels.cuda()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
@pytest.mark.parametrize("multi_hot", [False, True])
def test_the_device_gives_the_value_and_gradient_of_the_cpu(name, kind, multi_hot):
    embeddings, labels = batch(multi_hot)
    loss = weiss.make_loss(name, 50, 32, distance=kind).double()
    results = [
        found(loss.to(device), embeddings.double().to(device), labels.to(device))
        for device in ("cpu", "cuda")
    ]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12, check_device=False)


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("multi_hot", [False, True])
def test_without_checks_nothing_synchronises(name, multi_hot):
    embeddings, labels = batch(multi_hot)
    extra = {"max_labels_per_sample": 2} if multi_hot else {}
    loss = weiss.make_loss(name, 50, 32, check=False, reg_weight=1.0, **extra).cuda()
    loss(embeddings, labels)  # the first call loads kernels
    with synchronisation("error"):
        loss(embeddings.requires_grad_(), labels).backward()


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("multi_hot", [False, True])
def test_with_checks_the_device_is_asked_once(name, multi_hot):
    embeddings, labels = batch(multi_hot)
    loss = weiss.make_loss(name, 50, 32).cuda()
    loss(embeddings, labels)
    with synchronisation("warn"), pytest.warns(UserWarning, match="synchronizing") as caught:
        loss(embeddings, labels)
    assert len([w for w in caught if "synchronizing" in str(w.message)]) == 1


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("euclidean", "auto"),
        ("cosine", "reference"),
        ("cosine", "streaming"),
        ("cosine", "triton"),
        ("cosine", "large"),
        ("cosine", "several fields"),
    ],
)
def test_a_cuda_graph_captures_forward_and_backward(name, kind, way, monkeypatch):
    embeddings, labels = batch()
    embeddings.requires_grad_()
    impl, each = way, 1
    if way in ("large", "several fields"):
        impl, each = "triton", 1 if way == "large" else 3
        take_the_large_path(monkeypatch)
    options = {"distance": kind, "impl": impl, "fields_per_class": each}
    loss = weiss.make_loss(name, 50, 32, check=False, **options).cuda()
    inputs = [embeddings, loss.fields]
    warmed_up(lambda: torch.autograd.grad(loss(embeddings, labels), inputs))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(embeddings, labels)
        gradients = torch.autograd.grad(value, inputs)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            embeddings.copy_(torch.randn(64, 32))
            labels.copy_(torch.randint(seed + 1, 50, (64,)))
        graph.replay()
        x, m = (tensor.detach().clone().requires_grad_() for tensor in inputs)
        expected = torch.func.functional_call(loss, {"fields": m}, (x, labels))
        torch.testing.assert_close(value, expected)
        for a, b in zip(gradients, torch.autograd.grad(expected, [x, m]), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OURS)
def test_autocast_is_within_a_thousandth_of_float64(name, dtype):
    embeddings, labels = batch()
    embeddings = embeddings.to(dtype).float()
    loss = weiss.make_loss(name, 50, 32).cuda()
    x = embeddings.clone().requires_grad_()
    with torch.autocast("cuda", dtype=dtype):
        value = loss(x, labels)
    gradients = torch.autograd.grad(value, [x, *loss.parameters()])
    y, exact = embeddings.double().requires_grad_(), loss.double()
    expected = exact(y, labels)
    for a, b in zip(
        gradients, torch.autograd.grad(expected, [y, *exact.parameters()]), strict=True
    ):
        assert (a.double() - b).norm() / b.norm() < 1e-3
    # CWMS carries a constant of log(2) / alpha, beside which any error would look small.
    zero = exact.interactions.attraction(torch.zeros((), dtype=torch.float64))
    link = exact.interactions.attraction_link
    constant = link.apply(zero - math.log(2) if name == "cwms" else zero) if "cwms" in name else 0
    assert abs(value.item() - expected.item()) / abs(expected.item() - constant) < 1e-3


@pytest.mark.parametrize("name", OURS)
def test_labels_left_on_the_cpu_are_moved(name):
    embeddings, labels = batch()
    loss = weiss.make_loss(name, 50, 32).cuda()
    assert torch.equal(loss(embeddings, labels.cpu()), loss(embeddings, labels))


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_a_loss_left_on_the_cpu_is_refused(name):
    embeddings, labels = batch()
    with pytest.raises(ValueError, match="embeddings must be on cpu.*got cuda"):
        weiss.make_loss(name, 50, 32)(embeddings, labels)


@pytest.mark.parametrize("name", OURS)
def test_a_compiled_loss_gives_the_same_value_and_gradient(name):
    embeddings, labels = batch()
    loss = weiss.make_loss(name, 50, 32, check=False).cuda()
    compiled = torch.compile(loss, fullgraph=True)
    with warnings.catch_warnings(action="ignore"):  # the compiler recommends TF32
        results = [found(each, embeddings, labels) for each in (loss, compiled)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
@pytest.mark.parametrize("ties", [False, True])
def test_retrieval_on_the_device_gives_the_numbers_of_the_cpu(kind, ties):
    torch.manual_seed(0)
    labels = torch.randint(200, (3000,))
    if ties:  # along the axes cosines and distances are exact, and tie exactly
        embeddings = torch.eye(8)[torch.randint(8, (3000,))] * 2.0 ** torch.randint(3, (3000, 1))
    else:
        embeddings = torch.randn(200, 32)[labels] + torch.randn(3000, 32)
    embeddings = embeddings.double()
    expected = weiss.retrieval_metrics(embeddings, labels, distance=kind, map_at=(5,))
    for budget in (None, 2_000_000):
        found = weiss.retrieval_metrics(
            embeddings.cuda(), labels.cuda(), distance=kind, map_at=(5,), memory_budget=budget
        )
        assert found == pytest.approx(expected, abs=1e-12)


def test_retrieval_does_not_follow_tf32():
    torch.manual_seed(0)
    labels = torch.randint(500, (4000,), device="cuda")
    embeddings = torch.randn(500, 64, device="cuda")[labels] + 2 * torch.randn(4000, 64).cuda()
    expected = weiss.retrieval_metrics(embeddings, labels)
    with tf32():
        assert weiss.retrieval_metrics(embeddings, labels) == expected
        assert torch.get_float32_matmul_precision() == "high"


def test_chunks_select_what_topk_selects():
    scores = torch.randn(64, 20_011, device="cuda")
    values, index = neighbours._largest(scores, 20)
    expected = scores.topk(20, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_screened_neighbours_are_those_of_full_precision(distance, kernels, monkeypatch):
    """With every precision that a training script may have lowered."""
    if kernels:
        pytest.importorskip("triton")
    else:
        monkeypatch.setattr(neighbours, "why_no_triton", lambda device: "not asked for")
    monkeypatch.setattr(screening, "WORTHWHILE", {"cuda": 0})
    generator = torch.Generator("cuda").manual_seed(0)
    items = torch.randn(20_000, 200, generator=generator, device="cuda")
    items[10_000:10_500] = items[:500]  # equal items
    items[15_000:16_000] = items[0] + 1e-5 * items[15_000:16_000]  # nearer than the slack
    exact = items.double()
    found, in_full = [], np.zeros(len(items), dtype=bool)
    options = {"distance": distance, "leave_one_out": True, "device": items.device}
    options |= {"budget": 2**30, "rows": np.arange(len(items)), "in_full": in_full}
    with tf32(), sums_in_float16():
        for rows, index in neighbours.nearest_neighbours(
            items, items, np.full(len(items), 10), **options
        ):
            found.append((torch.from_numpy(rows).cuda(), index))
    # The kernels have room for as many candidates as are near each other here.
    assert (0 if kernels else 900) <= in_full.sum() < 1100
    for rows, index in found:
        for part, nearest in zip(rows.split(500), index.split(500), strict=True):
            if distance == "cosine":
                close = normalize(exact[part]) @ normalize(exact).T
            else:
                close = -torch.cdist(exact[part], exact)
            close[torch.arange(len(part)), part] = -math.inf
            best = close.topk(10, dim=1).values
            torch.testing.assert_close(close.gather(1, nearest), best, atol=2e-6, rtol=1e-6)
        equal = rows < 500
        assert (index[equal][1:, 0] == rows[equal][1:] + 10_000).all()


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_tf32_costs_three_digits_where_it_is_allowed(name):
    embeddings, labels = batch()
    loss = weiss.make_loss(name, 50, 32).cuda()
    exact = loss(embeddings, labels).item()
    with tf32():
        coarse = loss(embeddings, labels).item()
    assert coarse == pytest.approx(exact, rel=2e-2)


# Fused kernels

WAYS = {
    "small": {"skip": "off"},
    "large": {"skip": "off"},
    "near pairs": {"skip": "on"},
    "bfloat16": {"skip": "off", "matmul_dtype": "bfloat16"},
}
EVERY_WAY = [(name, way) for name in FUSED for way in WAYS if way != "near pairs"]
EVERY_WAY.remove(("mf_rest_ms", "bfloat16"))
EVERY_WAY.append(("mf_contrastive", "near pairs"))


@pytest.mark.parametrize(("name", "way"), EVERY_WAY)
@pytest.mark.parametrize("shape", [(180, 300, 64), (255, 1507, 123)], ids=str)
def test_fused_kernels_err_as_the_plain_formula_does(name, way, shape, monkeypatch):
    embeddings, labels, fields = clustered(*shape, same=9)
    if way in ("large", "bfloat16"):
        take_the_large_path(monkeypatch)
    near_pairs_pay(monkeypatch)
    for average in ("classes", "samples"):
        settings = {**GENTLE[name], "average": average}
        loss = with_fields(name, fields, impl="triton", **WAYS[way], **settings).cuda()
        results = found(loss, embeddings.cuda(), labels.cuda())
        assert (loss.skipped_share is not None) == (way == "near pairs")
        assert loss.skipped_share is None or 0 < loss.skipped_share < 1
        exact = with_fields(name, fields.double(), impl="reference", **settings)
        truth = found(exact, embeddings.double(), labels)
        x, m, slack = embeddings, fields, 5e-6
        if way == "bfloat16":  # beyond the rounding of both factors, that of coefficients
            length = embeddings.norm(dim=1, keepdim=True)
            x, m = normalize(embeddings).bfloat16().float() * length, fields.bfloat16().float()
            # A hinge has a coefficient or none, and rounding decides for those at its edge.
            slack = 5e-2 if name == "mf_contrastive" else 2e-2
        plain_loss = with_fields(name, m, impl="reference", **settings).cuda()
        plain = found(plain_loss, x.cuda(), labels.cuda())
        assert_within_budget(results, plain, truth, slack)


@pytest.mark.parametrize("way", ["small", "large"])
@pytest.mark.parametrize("keeps", ["full", "half"])
@pytest.mark.parametrize(
    "settings",
    [
        PROXY_ANCHOR,
        {"alpha": 80.0, "beta": 1000.0, "delta": 1.2, "margin": 0.5, "over": "all"},
        {},
        {"average": "samples", "over": "all", "divides_by": "all"},
    ],
    ids=["ProxyAnchor", "steep", "present", "samples"],
)
def test_one_against_the_rest_errs_as_the_plain_formula_does(way, keeps, settings, monkeypatch):
    settings = {**settings, "keeps": keeps}
    # With many samples and short vectors fewer blocks find room in the gradient.
    for shape in ((255, 507, 123), (507, 3011, 40)):
        embeddings, labels, fields = clustered(*shape, same=9)
        if way == "large":
            take_the_large_path(monkeypatch)
        loss = with_fields("mf_rest_ms", fields, impl="triton", **settings).cuda()
        results = found(loss, embeddings.cuda(), labels.cuda())
        exact = with_fields("mf_rest_ms", fields.double(), impl="reference", **settings)
        truth = found(exact, embeddings.double(), labels)
        plain_loss = with_fields("mf_rest_ms", fields, impl="reference", **settings).cuda()
        plain = found(plain_loss, embeddings.cuda(), labels.cuda())
        assert_within_budget(results, plain, truth, slack=5e-6)


def with_several(name, each, shape, **options):
    """A loss with several fields a class, on the device; a batch near its fields; the fields."""
    batch, num_classes, size = shape
    embeddings, labels, fields = clustered(batch, num_classes * each, size, same=9)
    fields = fields.view(num_classes, each, size)
    loss = with_fields(name, fields, impl="triton", **options).cuda()
    return loss, embeddings, labels // each, fields


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(
    ("each", "gamma", "shape"),
    [
        (2, 4.0, (255, 507, 123)),
        (3, 80.0, (255, 507, 123)),
        (4, 80.0, (507, 3011, 40)),
        (5, 1e-3, (255, 507, 123)),
        (12, 4.0, (507, 130, 64)),
    ],
)
@pytest.mark.parametrize("block", [2**16, 2**22])
def test_several_fields_err_as_the_plain_formula_does(name, each, gamma, shape, block, monkeypatch):
    take_the_large_path(monkeypatch, block)
    every = [{"average": average} for average in ("classes", "samples")]
    if name == "mf_rest_ms":
        every = [{"keeps": "half"}, {"over": "all", "average": "samples"}, PROXY_ANCHOR]
    for settings in every:
        settings = {**GENTLE[name], **settings, "fields_gamma": gamma}
        loss, embeddings, labels, fields = with_several(name, each, shape, **settings)
        results = found(loss, embeddings.cuda(), labels.cuda())
        exact = with_fields(name, fields.double(), impl="reference", **settings)
        truth = found(exact, embeddings.double(), labels)
        plain_loss = with_fields(name, fields, impl="reference", **settings).cuda()
        plain = found(plain_loss, embeddings.cuda(), labels.cuda())
        assert_within_budget(results, plain, truth, slack=5e-6)


@pytest.mark.parametrize("name", FUSED)
def test_several_fields_give_the_same_bits_on_every_run(name, monkeypatch):
    take_the_large_path(monkeypatch)
    loss, x, labels, _ = with_several(name, 3, (180, 300, 64), **GENTLE[name])
    first, *others = (found(loss, x.cuda(), labels.cuda()) for _ in range(5))
    assert all(same_bits(other, first) for other in others)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fused_kernels_round_gradients_once(name, dtype):
    embeddings, labels, fields = clustered(180, 300, 64, same=9)
    embeddings = embeddings.to(dtype)
    exact = with_fields(name, fields.double(), impl="reference", **GENTLE[name])
    truth = found(exact, embeddings.double(), labels)
    losses = [with_fields(name, fields, impl=i, **GENTLE[name]) for i in ("triton", "reference")]
    results, plain = (found(loss.cuda(), embeddings.cuda(), labels.cuda()) for loss in losses)
    assert results[1].dtype == dtype
    assert_within_budget(results, plain, truth, slack=5e-6)


@pytest.mark.parametrize(("name", "way"), EVERY_WAY)
def test_fused_kernels_give_the_same_bits_on_every_run(name, way, monkeypatch):
    if way in ("large", "bfloat16"):
        take_the_large_path(monkeypatch)
    near_pairs_pay(monkeypatch)
    loss, x, labels = placed(name, impl="triton", **WAYS[way], **GENTLE[name])
    first, *others = (found(loss, x, labels) for _ in range(5))
    assert all(same_bits(other, first) for other in others)


def test_a_hinge_loses_no_bit_of_its_gradients_to_skipping(monkeypatch):
    near_pairs_pay(monkeypatch)
    loss, x, labels = placed(impl="triton", skip="on")
    few = found(loss, x, labels)
    assert 0.5 < loss.skipped_share < 1
    monkeypatch.setattr(Problem, "reach", math.inf)
    every = found(loss, x, labels)
    assert loss.skipped_share == 0.0
    assert same_bits(few, every)


def test_by_itself_a_hinge_of_many_pairs_skips(monkeypatch):
    near_pairs_pay(monkeypatch)
    plain, x, labels = placed()
    expected = found(plain, x, labels)
    assert plain.skipped_share is None
    monkeypatch.setattr(plan, "SKIPPED_PAIRS_GPU", 180 * 300)
    for name, check, skips in (
        ("mf_contrastive", True, True),
        ("mf_contrastive", False, True),
        ("mf_cwms", True, False),
    ):
        loss, _, _ = placed(name, check=check)
        results = found(loss, x, labels)
        assert (loss.skipped_share is not None) == skips
        if skips:
            torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-7)


def test_near_pairs_fit_in_a_cuda_graph(monkeypatch):
    """Which cannot ask how many there are, and so takes them however many."""
    near_pairs_pay(monkeypatch)
    loss, x, labels = placed(impl="triton", skip="on", check=False)
    expected = found(loss, x, labels)  # compiles
    x.requires_grad_()
    near_pairs_do_not_pay(monkeypatch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(x, labels)
        gradients = torch.autograd.grad(value, [x, loss.fields])
    graph.replay()
    assert loss.skipped_share > 0.5
    assert same_bits([value, *gradients], expected)


def test_by_itself_nothing_is_skipped_in_a_cuda_graph(monkeypatch):
    monkeypatch.setattr(plan, "SKIPPED_PAIRS_GPU", 1)
    loss, x, labels = placed(check=False)
    found(loss, x, labels)
    found(placed(skip="off")[0], x, labels)  # compiles
    x.requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(x, labels)
        torch.autograd.grad(value, [x, loss.fields])
    assert loss.skipped_share is None


def test_where_too_many_pairs_are_near_all_are_computed(monkeypatch):
    near_pairs_do_not_pay(monkeypatch)
    results = {}
    for skip in ("on", "off"):
        loss, x, labels = placed(impl="triton", skip=skip)
        results[skip] = found(loss, x, labels)
        assert loss.skipped_share == (0.0 if skip == "on" else None)
    assert same_bits(*results.values())


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("each", [1, 4])
def test_with_many_classes_little_is_needed_beyond_the_gradient_of_the_fields(name, each):
    shape = (256, 200_000 // each, 256)
    if each == 1:
        loss, x, labels = placed(name, shape, impl="triton", **GENTLE[name])
    else:
        loss, x, labels, _ = with_several(name, each, shape, **GENTLE[name])
        x, labels = x.cuda(), labels.cuda()
    loss(x.requires_grad_(), labels).backward()  # compiles, and loads the library
    x.grad = loss.fields.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss(x, labels).backward()
    torch.cuda.synchronize()
    gradient = loss.fields.grad
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= 1.3 * gradient.numel() * gradient.element_size()


# CUDA graphs of small problems


def captured_loss(name="mf_cwms", times=6, **options):
    """A loss that was computed so often that it is replayed; its batch."""
    loss, x, labels = placed(name, (48, 70, 32), impl="triton", **GENTLE[name], **options)
    for _ in range(times):
        found(loss, x, labels)
    return loss, x, labels


def plainly(loss, x, labels, factor=1.0):
    """The same loss, computed for the first time."""
    return found(copy.deepcopy(loss), x, labels, factor)


def is_captured(loss):
    return bool(loss._graphs._graphs)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("check", [True, False])
def test_a_replay_gives_the_bits_of_a_plain_pass(name, check):
    loss, x, labels = captured_loss(name, check=check)
    assert is_captured(loss)
    for turn in range(3):
        x, labels = x.roll(turn, 0) * (1 + turn), labels.roll(2 * turn)
        for factor in (1.0, -2.5):
            assert same_bits(found(loss, x, labels, factor), plainly(loss, x, labels, factor))


def test_a_replay_sees_fields_that_have_moved():
    loss, x, labels = captured_loss()
    with torch.no_grad():
        loss.fields.mul_(-0.7).add_(0.1)
    assert same_bits(found(loss, x, labels), plainly(loss, x, labels))
    loss.fields = torch.nn.Parameter(loss.fields.detach().flip(0).clone())
    for _ in range(6):
        results = found(loss, x, labels)
    assert same_bits(results, plainly(loss, x, labels))


def test_passes_that_overlap_keep_their_own_gradients_and_values():
    loss, x, labels = captured_loss()
    first, second = x.clone().requires_grad_(), x.flip(0).clone().requires_grad_()
    values = [loss(first, labels), loss(second, labels)]
    expected = [plainly(loss, batch.detach(), labels) for batch in (first, second)]
    assert [v.item() for v in values] == [e[0].item() for e in expected]
    loss.fields.grad = None
    (values[0] + values[1]).backward()
    assert first.grad.equal(expected[0][1])
    assert second.grad.equal(expected[1][1])
    torch.testing.assert_close(loss.fields.grad, expected[0][2] + expected[1][2])


def test_gradients_of_replays_add_up_in_the_parameter():
    loss, x, labels = captured_loss()
    loss.fields.grad = None
    for _ in range(3):
        loss(x, labels).backward()
    torch.testing.assert_close(loss.fields.grad, 3 * plainly(loss, x, labels)[2])


def test_a_replay_can_be_gone_back_through_twice():
    loss, x, labels = captured_loss()
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    (once,) = torch.autograd.grad(value, [x], retain_graph=True)
    found(loss, x.detach().flip(0), labels)
    (twice,) = torch.autograd.grad(2 * value, [x])
    torch.testing.assert_close(twice, 2 * once)


def test_other_sizes_in_between_are_computed_as_they_are():
    loss, x, labels = captured_loss()
    for size in (48, 31, 48, 5, 48):
        part = x[:size], labels[:size]
        assert same_bits(found(loss, *part), plainly(loss, *part))


def test_a_captured_loss_can_be_copied_saved_and_moved(tmp_path):
    loss, x, labels = captured_loss()
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert not is_captured(other)
        assert found(other, x, labels)[0].equal(found(loss, x, labels)[0])
    moved = loss.cpu()
    moved.impl = "auto"
    assert found(moved, x.cpu(), labels.cpu())[0].isfinite()


def test_a_replayed_loss_can_be_part_of_a_captured_step():
    loss, x, labels = captured_loss(check=False)
    expected = plainly(loss, x, labels)
    x = x.clone().requires_grad_()
    warmed_up(lambda: loss(x, labels).backward())
    x.grad = loss.fields.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(x, labels)
        value.backward()
    graph.replay()
    assert value.equal(expected[0])
    assert x.grad.equal(expected[1])


@pytest.mark.parametrize("moves", [True, False])
def test_wrong_labels_are_refused_by_a_replay_too(moves):
    loss, x, labels = captured_loss()
    wrong = labels.index_fill(0, torch.tensor([3], device="cuda"), 70)
    right = labels.clone()
    for turn in range(9):  # in places that are new, or in one
        at = wrong.clone() if moves else labels
        loss(x, at.copy_(right))
        with pytest.raises(ValueError, match="labels must lie in"):
            loss(x, at.copy_(wrong))
        loss.check = False  # nobody waits for these counts
        loss(x, at)
        loss.check = True
        loss(x, at.copy_(right))
        with pytest.raises(ValueError, match="embeddings must be finite"):
            loss(x * (float("nan") if turn % 2 else float("inf")), at)
    assert is_captured(loss)


def test_batches_in_ever_new_memory_are_copied_to_a_graph():
    loss, x, labels = captured_loss(times=0)
    kept = []
    for turn in range(12):
        moved, of = x.roll(turn, 0).clone(), labels.roll(2 * turn).clone()
        kept.append((found(loss, moved, of), moved, of))  # so that no memory is used again
    assert is_captured(loss)
    for results, moved, of in kept:
        assert same_bits(results, plainly(loss, moved, of))


def test_a_graph_does_not_hold_its_batch():
    """Batches are read where they are; their memory must be free to be released."""
    loss, x, labels = captured_loss()
    batch = x.clone()
    for _ in range(6):
        found(loss, batch, labels)
    before, held = batch.clone(), weakref.ref(batch)
    found(loss, batch, labels)
    assert batch.equal(before)
    del batch
    gc.collect()
    assert held() is None


def test_labels_with_gaps_are_read_as_they_lie():
    loss, x, labels = captured_loss()
    both = torch.stack([labels, labels.flip(0)], 1)
    close, apart = both.view(-1)[: len(labels)], both[:, 0]
    assert close.data_ptr() == apart.data_ptr()
    for _ in range(6):
        results = [loss(x, at).item() for at in (close, apart)]
    assert results == [plainly(loss, x, at)[0].item() for at in (close.clone(), apart.clone())]


@pytest.mark.parametrize("moves", [True, False])
def test_a_loss_that_moves_or_is_deleted_leaves_no_graph_behind(moves):
    loss, _, _ = captured_loss()
    graph = weakref.ref(next(iter(loss._graphs._graphs.values())))
    if moves:
        loss.double()
    else:
        del loss
    gc.collect()
    assert graph() is None


def test_a_capture_that_fails_leaves_the_plain_way_and_the_stream(monkeypatch):
    fuse, times = cuda_graphs._fuse, []

    def failing(*asked):
        times.append(None)
        results = fuse(*asked)  # torch warns of a capture without a launch
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not today")
        return results

    monkeypatch.setattr(cuda_graphs, "_fuse", failing)
    stream = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="kernel by kernel.*not today"):
        loss, x, labels = captured_loss()
    assert torch.cuda.current_stream() == stream
    assert not is_captured(loss)
    assert found(loss, x, labels)[0].equal(plainly(loss, x, labels)[0])
    torch.nn.functional.dropout(torch.ones(3, device="cuda"))


@pytest.mark.parametrize("labels_of", ["several of a class", "one class beyond a tile"])
def test_products_in_bfloat16_add_up_classes_of_several_samples(labels_of):
    embeddings, _, fields = clustered(300, 4000, 64)
    each = 4 if labels_of == "several of a class" else 140
    labels = torch.arange(300) // each * 7
    loss = with_fields(
        "mf_cwms", fields, impl="triton", matmul_dtype="bfloat16", **GENTLE["mf_cwms"]
    )
    results = found(loss.cuda(), embeddings.cuda(), labels.cuda())
    exact = with_fields("mf_cwms", fields.double(), impl="reference", **GENTLE["mf_cwms"])
    truth = found(exact, embeddings.double(), labels)
    for a, b in zip(results, truth, strict=True):
        assert (a.cpu() - b).norm() <= 3e-2 * b.norm()
