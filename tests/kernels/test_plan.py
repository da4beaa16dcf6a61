"""Which plan is made where, and why one is refused."""

import importlib.util
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import one_hot

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.kernels import plan
from weiss.kernels.plan import Plan, make_plan
from weiss.kernels.problem import Problem, Shard, Task
from weiss.losses import (
    BinomialDeviance,
    ClassWiseMultiSimilarity,
    Contrastive,
    RestMultiSimilarity,
)
from weiss.theory.interactions import Interactions, LinearLink, OneAgainstRest

KNOWN = [Contrastive(), ClassWiseMultiSimilarity(), BinomialDeviance()]
has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


class OtherLink(LinearLink):
    """A link of which no kernel knows the derivative."""

    def apply(self, x):
        return x.square()


@dataclass(frozen=True)
class Foreign(Interactions):
    @property
    def repulsion_link(self):
        return OtherLink()

    def attraction(self, dist):
        return dist

    def repulsion(self, dist):
        return -dist


@dataclass(frozen=True)
class Cubic(Interactions):
    def attraction(self, dist):
        return dist**3

    def repulsion(self, dist):
        return (2 - dist) ** 3


class RestHinge(Contrastive, form="hinge"):
    """Its energies are those of the form, but the pairs of a class share a link."""

    sharing = OneAgainstRest()


def planned(
    impl="auto",
    interactions=None,
    batch=64,
    num_classes=1000,
    size=2,
    multi_hot=False,
    dtype=torch.float32,
    device="cpu",
    parts=1,
    distance="cosine",
    reg_weight=0.0,
    average="classes",
    by_columns=False,
    each=1,
    **asked,
):
    gamma = None if each == 1 else 80.0
    problem = Problem(interactions or Contrastive(), distance, average, reg_weight, gamma=gamma)
    embeddings, fields = (
        torch.empty(rows, size, dtype=dtype, device=device) for rows in (batch, num_classes * each)
    )
    if each > 1:
        fields = fields.view(num_classes, each, size)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    if multi_hot:
        labels = one_hot(labels, num_classes)
    if by_columns:
        fields = fields.T.contiguous().T
    shard = replace(Shard(0, parts * num_classes), parts=parts)
    task = Task(problem, embeddings, fields, labels, shard)
    return make_plan(task, "TheLoss", impl=impl, **asked)


def kernel(*asked, **more):
    return planned(*asked, **more).kernel


def refused(match, **arguments):
    with pytest.raises(ValueError, match=match):
        planned(**arguments)


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def interpreted(monkeypatch):
    """Let fused kernels run on a CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(plan, "_has_triton", lambda: True)


@pytest.mark.parametrize("interactions", [*KNOWN, Cubic()], ids=lambda i: type(i).__name__)
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_on_a_cpu_small_problems_are_the_plain_formula_and_others_stream(interactions, distance):
    case = {"interactions": interactions, "distance": distance}
    assert planned(batch=32, num_classes=1024, **case) == Plan("reference")
    assert planned(batch=33, num_classes=1024, **case) == Plan("streaming")
    assert kernel(batch=33, num_classes=1024, multi_hot=True, **case) == "streaming"
    assert kernel(batch=33, num_classes=1024, dtype=torch.float64, **case) == "streaming"
    # With the soft constraint the plain formula has C x C distances.
    assert kernel(batch=1, num_classes=1024, reg_weight=0.1, **case) == "streaming"


def test_what_is_asked_for_is_taken_whatever_the_size():
    for impl in ("reference", "streaming"):
        assert kernel(impl, batch=1, num_classes=1) == impl
        assert kernel(impl, batch=64, num_classes=4096) == impl


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("interactions", KNOWN, ids=lambda i: type(i).__name__)
def test_fused_kernels_are_taken_where_they_run_for_what_they_know(interactions):
    for impl in ("auto", "triton"):
        assert planned(impl, interactions) == Plan("small")
        assert planned(impl, interactions, batch=1, num_classes=1) == Plan("small")
        assert planned(impl, interactions, batch=1, num_classes=1, parts=2) == Plan("small")
        assert planned(impl, interactions, matmul_dtype="bfloat16") == Plan("bfloat16")
    assert planned("triton").is_fused
    assert not planned("streaming").is_fused


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("batch", "expected"), [(2**4, "small"), (2**4 + 1, "large")])
def test_large_problems_use_the_products_of_the_library(batch, expected):
    cwms = ClassWiseMultiSimilarity()
    assert planned("triton", cwms, batch=batch, num_classes=2**20) == Plan(expected)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "interactions", [*KNOWN, RestMultiSimilarity()], ids=lambda i: type(i).__name__
)
def test_several_fields_a_class_are_fused_with_the_products_of_the_library(interactions):
    for more in ({}, {"batch": 1, "num_classes": 1}, {"parts": 2}, {"reg_weight": 0.1}):
        assert planned("auto", interactions, each=3, **more) == Plan("large")
        assert planned("auto", interactions, each=1, **more) == Plan("small")
    words = "with these products its kernels know one field a class"
    if interactions in KNOWN:
        refused(words, interactions=interactions, each=2, matmul_dtype="bfloat16")


@pytest.fixture
def on_cuda(monkeypatch):
    """Let fields on the meta device pass for those of a GPU."""
    monkeypatch.setattr(plan, "_why_not_triton", lambda *asked: None)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    capturing = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    return capturing


def test_small_problems_of_a_gpu_are_captured(on_cuda):
    here = {"device": "meta", "batch": 4}
    assert planned(num_classes=2**20, **here) == Plan("small", captured=True)
    assert planned(num_classes=2**20 + 1, **here) == Plan("small")
    assert planned(num_classes=100, reg_weight=0.1, **here) == Plan("small")
    assert planned(num_classes=100, parts=2, **here) == Plan("small")
    assert planned(num_classes=100, skip="on", **here) == Plan("small", skips=True)
    assert planned(num_classes=100, matmul_dtype="bfloat16", **here) == Plan("bfloat16")
    assert planned(num_classes=100, each=2, **here) == Plan("large")


def test_fields_of_many_numbers_or_in_columns_are_not_captured(on_cuda):
    here = {"device": "meta", "batch": 1, "size": 512}
    assert planned(num_classes=2**14, **here) == Plan("small", captured=True)
    assert planned(num_classes=2**14 + 1, **here) == Plan("small")
    assert planned(num_classes=2**14, **here, by_columns=True) == Plan("small")


UNKNOWN = {
    "know the cosine distance, not 'euclidean'": {"distance": "euclidean"},
    "no closed form": {"interactions": Cubic()},
    "take class indices, not multi-hot labels": {"multi_hot": True},
    "fields must be float32.*torch.float64": {"dtype": torch.float64},
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("why", UNKNOWN)
def test_what_fused_kernels_do_not_know_is_streamed_or_refused(why):
    case = UNKNOWN[why]
    assert kernel(**case) == kernel(**case, parts=2) == "streaming"
    refused(f"impl='triton' cannot be used for TheLoss.*{why}", impl="triton", **case)
    words = f"matmul_dtype must be 'float32' for TheLoss here.*{why}.*'bfloat16'"
    refused(words, matmul_dtype="bfloat16", **case)


@pytest.mark.usefixtures("interpreted")
def test_one_against_the_rest_is_fused_for_exponentials_of_any_average():
    rest = RestMultiSimilarity()
    for average in ("classes", "samples", "none"):
        assert planned("triton", rest, average=average) == Plan("small")
        assert planned("auto", rest, batch=17, num_classes=2**20, average=average).kernel == "large"
    refused("sums", impl="triton", interactions=ClassWiseMultiSimilarity(), average="none")
    words = "with these products its kernels give every pair of classes a link of its own"
    refused(words, interactions=rest, matmul_dtype="bfloat16")
    refused("kernels know exponentials alone", impl="triton", interactions=RestHinge())


@pytest.mark.usefixtures("interpreted")
def test_products_in_bfloat16_are_refused_where_exponents_are_too_large():
    within, beyond = (ClassWiseMultiSimilarity(beta=beta, delta=0.5) for beta in (280.0, 300.0))
    assert kernel(interactions=beyond) == "small"
    assert kernel(interactions=within, matmul_dtype="bfloat16") == "bfloat16"
    words = "exponents must be at most 140 and reach 150.*'bfloat16'"
    refused(words, interactions=beyond, matmul_dtype="bfloat16")


@pytest.mark.usefixtures("interpreted")
def test_without_triton_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(plan, "_has_triton", lambda: False)
    assert kernel() == "streaming"
    refused("Triton is not installed .pip install 'weiss", impl="triton")


@has_triton
def test_fused_kernels_are_refused_on_a_cpu():
    words = "impl='triton' cannot be used for .*: the fields are on cpu, not on a CUDA device"
    refused(words, impl="triton")


@pytest.mark.parametrize("impl", ["auto", "reference", "streaming"])
def test_products_in_bfloat16_are_refused_where_no_kernel_is_fused(impl):
    loss = weiss.make_loss("mf_cwms", 5, 3, impl=impl, matmul_dtype="bfloat16")
    with pytest.raises(ValueError, match="matmul_dtype must be 'float32' for MeanField.*fused"):
        loss(torch.ones(2, 3), torch.tensor([0, 1]))


def test_a_compiler_gets_the_plain_formula_unless_it_is_too_large(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert kernel(batch=64, num_classes=1000) == "reference"
    assert kernel("streaming", batch=64, num_classes=1000) == "streaming"
    monkeypatch.setattr(plan, "COMPILED_DISTANCES", 64 * 1000 - 1)
    assert kernel(batch=64, num_classes=1000) == "streaming"


@pytest.mark.parametrize("way", ["interpreted", "not_interpreted"])
def test_a_foreign_link_is_always_the_plain_formula(way, request):
    request.getfixturevalue(way)
    assert kernel(interactions=Foreign(), batch=64, num_classes=4096) == "reference"
    words = "links must be LinearLink or LogLink for TheLoss"
    refused(words, impl="streaming", interactions=Foreign())
    refused("no closed form", impl="triton", interactions=Foreign())
    assert MeanFieldLoss(Foreign(), 5, 3)(torch.ones(2, 3), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize(
    ("option", "given", "known"),
    [
        ("impl", "cuda", "'auto', 'reference', 'streaming'.*'triton'"),
        ("skip", True, "'auto', 'on'.*'off'"),
        ("matmul_dtype", "float16", "'float32'.*'bfloat16'"),
    ],
)
def test_unknown_names_are_refused_with_those_there_are(option, given, known):
    with pytest.raises(ValueError, match=rf"{option} must be.*{known}.*MeanField.*got {given!r}"):
        weiss.make_loss("mf_cwms", 5, 3, **{option: given})


def test_pair_losses_know_the_plain_formula_alone():
    for impl in ("streaming", "triton"):
        with pytest.raises(ValueError, match=f"impl must be.*'reference'.*got '{impl}'"):
            weiss.ContrastiveLoss(impl=impl)
    for option in ("skip", "matmul_dtype"):
        with pytest.raises(TypeError, match=f"no argument '{option}'. Mean-field losses have it"):
            PairLoss(Contrastive(), **{option: "auto"})


def test_shards_of_any_size_choose_alike(monkeypatch):
    for batch, num_classes in ((1, 1), (64, 1000)):
        size = {"batch": batch, "num_classes": num_classes, "parts": 2}
        assert planned(**size) == Plan("streaming")
        assert planned(interactions=Cubic(), **size) == Plan("streaming")
        refused("fields of TheLoss must be whole.*'reference'", impl="reference", **size)
        refused("must be whole for links other", interactions=Foreign(), **size)
        refused("matmul_dtype must be 'float32' for TheLoss", matmul_dtype="bfloat16", **size)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert planned(**size) == Plan("streaming")


@has_triton
def test_where_no_kernel_runs_there_is_one_warning_and_plain_pytorch_computes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    plan._why_kernels_fail.cache_clear()
    device = torch.device("cpu")  # on which Triton finds no driver
    with pytest.warns(UserWarning, match="Triton does not work on this machine .*plain PyTorch"):
        why = plan._why_kernels_fail(device)
    assert why.startswith("Triton does not work on this machine")
    assert plan._why_kernels_fail(device) == why  # without another warning, which would fail here
    plan._why_kernels_fail.cache_clear()


def test_old_gpus_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    plan._why_kernels_fail.cache_clear()
    assert "compute capability 8.0" in plan._why_kernels_fail(torch.device("cuda:0"))
    plan._why_kernels_fail.cache_clear()


# Which plans skip far pairs


def test_hinges_of_many_pairs_skip_far_ones_on_a_cpu():
    assert planned(batch=64, num_classes=4096) == Plan("streaming", skips=True)
    assert planned(batch=63, num_classes=4096) == Plan("streaming")
    assert planned(batch=64, num_classes=2048, parts=2) == Plan("streaming")
    assert planned(batch=64, num_classes=4096, parts=2) == Plan("streaming", skips=True)


def test_hinges_of_many_pairs_skip_far_ones_on_a_gpu(on_cuda):
    many = {"device": "meta", "batch": 64, "num_classes": 2**19}
    assert planned(**many) == Plan("large", skips=True)
    assert planned(**many, matmul_dtype="bfloat16") == Plan("bfloat16", skips=True)
    assert planned(**{**many, "batch": 63}) == Plan("large")
    assert planned(**many, parts=2) == Plan("large")
    on_cuda.append("a CUDA graph")  # which cannot ask how many are near
    assert planned(**many) == Plan("large")
    assert planned(**many, skip="on") == Plan("large", skips=True)


NEVER = {
    "distance": ({"distance": "euclidean"}, "know.* the cosine distance, not 'euclidean'"),
    "several fields": ({"each": 2}, "knows one field a class"),
    "labels": ({"multi_hot": True}, "takes class indices, not multi-hot labels"),
    "closed form": ({"interactions": Cubic()}, "no closed form"),
    "exponentials": ({"interactions": ClassWiseMultiSimilarity()}, "only .* a hinge"),
    "soft hinges": ({"interactions": BinomialDeviance()}, "only .* a hinge"),
    "one against the rest": ({"interactions": RestHinge()}, "every pair of classes a link"),
    "reference": ({"impl": "reference"}, "plain formula over all pairs"),
    "streaming on a GPU": ({"impl": "streaming", "device": "meta"}, "part of impl='triton'"),
    "a shard of a GPU": ({"impl": "streaming", "device": "meta", "parts": 2}, "on a GPU"),
}


@pytest.mark.parametrize("why", NEVER)
def test_other_losses_never_skip(why):
    case, words = NEVER[why]
    refused(f"skip='on' cannot be used for TheLoss.*{words}", skip="on", **case)
    many = {} if "multi_hot" in case else {"num_classes": 2**25}
    assert not planned(**case, **many).skips


def test_skipping_can_be_asked_for_and_forbidden():
    assert planned(skip="on", batch=2, num_classes=3) == Plan("streaming", skips=True)
    assert planned(skip="off", batch=64, num_classes=4096) == Plan("streaming")


@pytest.mark.parametrize("check", [True, False])
def test_far_pairs_are_skipped_with_and_without_checks(check):
    """The trainer turns checks off."""
    loss = weiss.make_loss("mf_contrastive", 4096, 16, check=check)
    loss(torch.randn(64, 16), torch.arange(64))
    assert loss.skipped_share > 0.5
