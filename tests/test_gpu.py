"""What can only be seen on a CUDA device."""

import contextlib
import math
import warnings

import pytest
import torch

import weiss
from weiss import neighbours

pytestmark = pytest.mark.gpu
MEAN_FIELD = ["mf_contrastive", "mf_cwms", "mf_binomial"]
OURS = ["contrastive", "cwms", "binomial", *MEAN_FIELD]


@contextlib.contextmanager
def synchronisation(mode):
    """Let CUDA warn of, or refuse, every operation that makes the host wait."""
    with warnings.catch_warnings(action="ignore"):  # the mode announces itself as a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
    results = []
    for device in ("cpu", "cuda"):
        loss = loss.to(device)
        x = embeddings.double().to(device).requires_grad_()
        value = loss(x, labels.to(device))
        gradients = torch.autograd.grad(value, [x, *loss.parameters()])
        results.append([value.cpu(), *(gradient.cpu() for gradient in gradients)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


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


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_a_cuda_graph_captures_forward_and_backward(name, kind):
    embeddings, labels = batch()
    embeddings.requires_grad_()
    loss = weiss.make_loss(name, 50, 32, check=False, distance=kind).cuda()
    inputs = [embeddings, loss.fields]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(loss(embeddings, labels), inputs)
    torch.cuda.current_stream().wait_stream(stream)
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


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_every_run_gives_the_same_bits(name):
    embeddings, labels = batch()
    loss = weiss.make_loss(name, 50, 32).cuda()
    runs = []
    for _ in range(5):
        x = embeddings.clone().requires_grad_()
        value = loss(x, labels)
        runs.append([value, *torch.autograd.grad(value, [x, loss.fields])])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


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
    results = []
    with warnings.catch_warnings(action="ignore"):  # the compiler recommends TF32
        for function in (loss, compiled):
            x = embeddings.clone().requires_grad_()
            value = function(x, labels)
            results.append([value, *torch.autograd.grad(value, [x, *loss.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


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
    torch.set_float32_matmul_precision("high")
    try:
        assert weiss.retrieval_metrics(embeddings, labels) == expected
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_chunks_select_what_topk_selects():
    scores = torch.randn(64, 20_011, device="cuda")
    values, index = neighbours._largest(scores, 20)
    expected = scores.topk(20, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_tf32_costs_three_digits_where_it_is_allowed(name):
    embeddings, labels = batch()
    loss = weiss.make_loss(name, 50, 32).cuda()
    exact = loss(embeddings, labels).item()
    torch.set_float32_matmul_precision("high")
    try:
        coarse = loss(embeddings, labels).item()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert coarse == pytest.approx(exact, rel=2e-2)
