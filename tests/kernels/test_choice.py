"""Which implementation is taken where, and what is said where one cannot be."""

import importlib.util
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import one_hot

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.kernels import choice
from weiss.kernels.choice import choose, choose_for_shards
from weiss.kernels.problem import Problem
from weiss.losses import BinomialDeviance, ClassWiseMultiSimilarity, Contrastive
from weiss.theory.interactions import Interactions, LinearLink

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


def chosen(
    asked="auto",
    interactions=None,
    batch=64,
    num_classes=1000,
    multi_hot=False,
    dtype=torch.float32,
    chooser=choose,
    **described,
):
    described = {"distance": "cosine", "average": "classes", **described}
    problem = Problem(interactions or Contrastive(), **described)
    embeddings, fields = torch.ones(batch, 2, dtype=dtype), torch.ones(num_classes, 2, dtype=dtype)
    labels = torch.zeros(batch, dtype=torch.long)
    if multi_hot:
        labels = one_hot(labels, num_classes)
    return chooser(asked, problem, embeddings, fields, labels, "TheLoss")


def refused(match, **arguments):
    with pytest.raises(ValueError, match=match):
        chosen(**arguments)


@pytest.fixture
def not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def interpreted(monkeypatch):
    """Let the CPU pass for a place where fused kernels run."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(choice, "_has_triton", lambda: True)


@pytest.mark.usefixtures("not_interpreted")
@pytest.mark.parametrize("interactions", [*KNOWN, Cubic()], ids=lambda i: type(i).__name__)
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_on_a_cpu_small_problems_are_the_plain_formula_and_others_stream(interactions, distance):
    case = {"interactions": interactions, "distance": distance}
    assert chosen(batch=32, num_classes=1024, **case) == "reference"
    assert chosen(batch=33, num_classes=1024, **case) == "streaming"
    assert chosen(batch=33, num_classes=1024, multi_hot=True, **case) == "streaming"
    assert chosen(batch=33, num_classes=1024, dtype=torch.float64, **case) == "streaming"


@pytest.mark.usefixtures("not_interpreted")
def test_what_is_asked_for_is_taken_whatever_the_size():
    for asked in ("reference", "streaming"):
        assert chosen(asked, batch=1, num_classes=1) == asked
        assert chosen(asked, batch=64, num_classes=4096) == asked


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("interactions", KNOWN, ids=lambda i: type(i).__name__)
def test_fused_kernels_are_taken_where_they_run_for_what_they_know(interactions):
    for asked in ("auto", "triton"):
        assert chosen(asked, interactions) == "triton"
        assert chosen(asked, interactions, batch=1, num_classes=1) == "triton"
        assert chosen(asked, interactions, products="bfloat16") == "triton"


UNKNOWN = {
    "its kernels know the cosine distance, not 'euclidean'": {"distance": "euclidean"},
    "its kernels do not know these interactions, which have no closed form": {
        "interactions": Cubic()
    },
    "its kernels take class indices, not multi-hot labels": {"multi_hot": True},
    "fields must be float32.*torch.float64": {"dtype": torch.float64},
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("why", UNKNOWN)
def test_what_fused_kernels_do_not_know_is_streamed_or_refused_in_words(why):
    case = UNKNOWN[why]
    assert chosen(**case) == "streaming"
    refused(
        f"impl='triton' cannot be used for TheLoss here: {why}.*impl='auto'", asked="triton", **case
    )
    words = f"products must be 'float32' for TheLoss here, since {why}.*got 'bfloat16'"
    refused(words, products="bfloat16", **case)


@pytest.mark.usefixtures("interpreted")
def test_narrow_products_are_refused_where_exponents_are_too_large():
    interactions = weiss.make_loss("mf_cwms", 5, 3, beta=300.0, delta=0.5).interactions
    assert chosen("auto", interactions) == "triton"
    words = "products must be 'float32'.*exponents must be at most 140 and reach 150.*'bfloat16'"
    refused(words, interactions=interactions, products="bfloat16")


@pytest.mark.usefixtures("interpreted")
def test_without_triton_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(choice, "_has_triton", lambda: False)
    assert chosen() == "streaming"
    refused("Triton is not installed .pip install 'weiss", asked="triton")


@has_triton
@pytest.mark.usefixtures("not_interpreted")
def test_fused_kernels_are_refused_on_a_cpu():
    words = "impl='triton' cannot be used for .*: the fields are on cpu, not on a CUDA device.*auto"
    refused(words, asked="triton")
    loss = weiss.make_loss("mf_contrastive", 5, 3, impl="triton")
    with pytest.raises(ValueError, match=words):
        loss(torch.ones(2, 3), torch.tensor([0, 1]))


@pytest.mark.usefixtures("not_interpreted")
@pytest.mark.parametrize("asked", ["auto", "reference", "streaming"])
def test_narrow_products_are_refused_where_no_kernel_is_fused(asked):
    words = "products must be 'float32' for TheLoss.*got 'bfloat16', which is for the fused kernels"
    refused(words, asked=asked, products="bfloat16")
    loss = weiss.make_loss("mf_cwms", 5, 3, impl=asked, products="bfloat16")
    with pytest.raises(ValueError, match="products must be 'float32' for MeanField"):
        loss(torch.ones(2, 3), torch.tensor([0, 1]))


@pytest.mark.usefixtures("not_interpreted")
def test_a_compiler_gets_the_plain_formula_unless_it_is_too_large(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert chosen(batch=64, num_classes=1000) == "reference"
    assert chosen("streaming", batch=64, num_classes=1000) == "streaming"
    monkeypatch.setattr(choice, "COMPILED", 64 * 1000 - 1)
    assert chosen(batch=64, num_classes=1000) == "streaming"


@pytest.mark.parametrize("way", ["interpreted", "not_interpreted"])
def test_a_foreign_link_is_always_the_plain_formula(way, request):
    request.getfixturevalue(way)
    assert chosen(interactions=Foreign(), batch=64, num_classes=4096) == "reference"
    words = "links must be LinearLink or LogLink for TheLoss.*got another. Take impl='reference'"
    refused(words, asked="streaming", interactions=Foreign())
    refused("no closed form", asked="triton", interactions=Foreign())


def test_a_foreign_link_is_refused_by_the_loss_itself():
    loss = MeanFieldLoss(Foreign(), 5, 3, impl="streaming")
    with pytest.raises(ValueError, match="links must be LinearLink or LogLink for MeanFieldLoss"):
        loss(torch.ones(2, 3), torch.tensor([0, 1]))
    assert MeanFieldLoss(Foreign(), 5, 3)(torch.ones(2, 3), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize(
    ("option", "given"),
    [("impl", "strem"), ("impl", "cuda"), ("skip", "yes"), ("skip", True), ("products", "float16")],
)
@pytest.mark.parametrize("name", ["mf_contrastive", "mf_cwms", "mf_binomial"])
def test_unknown_names_are_refused_with_those_there_are(name, option, given):
    known = {
        "impl": "'auto', 'reference', 'streaming'.*'triton'",
        "skip": "'auto', 'on'.*'off'",
        "products": "'float32'.*'bfloat16'",
    }[option]
    with pytest.raises(ValueError, match=rf"{option} must be.*{known}.*MeanField.*got {given!r}"):
        weiss.make_loss(name, 5, 3, **{option: given})


@pytest.mark.parametrize("impl", ["streaming", "triton"])
def test_pair_losses_know_the_plain_formula_alone(impl):
    words = "impl must be one of 'auto', 'reference' for {}; got '{}'"
    with pytest.raises(ValueError, match=words.format("PairLoss", impl)):
        PairLoss(Contrastive(), impl=impl)
    with pytest.raises(ValueError, match=words.format("ContrastiveLoss", impl)):
        weiss.ContrastiveLoss(impl=impl)


@pytest.mark.parametrize("option", ["skip", "products"])
def test_pair_losses_have_nothing_to_skip_or_to_round(option):
    with pytest.raises(TypeError, match=f"no argument '{option}'. Mean-field losses have it"):
        PairLoss(Contrastive(), **{option: "auto"})


@pytest.mark.usefixtures("not_interpreted")
def test_shards_of_any_size_choose_alike():
    for batch, num_classes in ((1, 1), (64, 4096)):
        size = {"batch": batch, "num_classes": num_classes, "chooser": choose_for_shards}
        assert chosen(**size) == "streaming"
        assert chosen(interactions=Cubic(), **size) == "streaming"
        refused("fields of TheLoss must be whole.*'reference'.*auto", asked="reference", **size)
        refused("must be whole for links other", interactions=Foreign(), **size)
        refused("products must be 'float32' for TheLoss here", products="bfloat16", **size)


@pytest.mark.usefixtures("interpreted")
def test_shards_are_fused_where_kernels_run():
    assert chosen(batch=1, num_classes=1, chooser=choose_for_shards) == "triton"
    assert chosen(interactions=Cubic(), chooser=choose_for_shards) == "streaming"


@has_triton
def test_where_no_kernel_runs_one_is_told_once_and_plain_pytorch_computes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    choice._why_kernels_fail.cache_clear()
    device = torch.device("cpu")  # on which Triton finds no driver
    with pytest.warns(UserWarning, match="Triton does not work on this machine .*plain PyTorch"):
        why = choice._why_kernels_fail(device)
    assert why.startswith("Triton does not work on this machine")
    assert choice._why_kernels_fail(device) == why  # without another warning, which would fail here
    choice._why_kernels_fail.cache_clear()


def test_old_gpus_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    choice._why_kernels_fail.cache_clear()
    assert "compute capability 8.0" in choice._why_kernels_fail(torch.device("cuda:0"))
    choice._why_kernels_fail.cache_clear()


@pytest.mark.parametrize(("device", "least"), [("cpu", 2**18), ("meta", 2**25)])
def test_hinges_of_many_pairs_look_for_those_that_are_near(device, least):
    batch = torch.empty(64, 1, device=device)
    hinge, exponential = (
        Problem(weiss.make_loss(name, 3, 2).interactions, "cosine", "classes")
        for name in ("mf_contrastive", "mf_cwms")
    )
    assert choice.skipping_pays(hinge, batch, least // 64)
    assert not choice.skipping_pays(hinge, batch, least // 64 - 1)
    assert not choice.skipping_pays(exponential, batch, least)
