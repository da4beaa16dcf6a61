"""Laws that every loss of the derivation keeps; swept over all of them."""

import copy
import io
import pickle
import warnings

import loops
import pytest
import torch
from budgets import MEAN_FIELD, OURS, PAIR, LargestTensor, assert_equal_to, found, same_bits, soft
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException

import weiss

KINDS = ["cosine", "euclidean"]
IMPLEMENTATIONS = ["reference", "streaming"]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
INTEGERS += [torch.uint32, torch.uint64]


def make(name, num_classes=5, size=3, **arguments):
    torch.manual_seed(0)
    return weiss.make_loss(name, num_classes, size, **arguments).double()


def every_loss(names=OURS):
    return pytest.mark.parametrize("name", names)


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels_each", [None, 2])
def test_gradients_are_those_of_the_value(name, kind, labels_each):
    embeddings, labels, fields = loops.random_batch(3, labels_each=labels_each)
    extra = {} if name in PAIR else {"reg_weight": 0.5}
    loss = make(name, distance=kind, **extra, **soft(name))
    inputs = [embeddings.requires_grad_()]
    if name in MEAN_FIELD:
        inputs.append(fields.requires_grad_())

    def value(x, m=None):
        if m is None:
            return loss(x, labels)
        return torch.func.functional_call(loss, {"fields": m}, (x, labels))

    assert torch.autograd.gradcheck(value, inputs)


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
def test_no_loss_is_below_its_least_value_which_classes_in_points_reach(name, kind):
    # Beyond a right angle only two classes can be.
    near = {"beta": 32.0, "delta": 0.5, "margin": 0.1} if name.endswith("rest_ms") else {}
    loss, labels = make(name, 3, 3, distance=kind, **near), torch.tensor([0, 0, 1, 2])
    points = torch.eye(3, dtype=torch.float64)
    if name in MEAN_FIELD:
        loss.fields.data = points.clone()
    reached = loss(points[labels], labels).item()
    assert reached == pytest.approx(loss.least_value, abs=1e-4 + 0.1 * (name == "mf_binomial"))
    for seed in range(5):
        embeddings = loops.random_batch(seed)[0]
        other = make(name, distance=kind)
        labels = torch.randint(5, (len(embeddings),), generator=torch.Generator().manual_seed(seed))
        assert other(embeddings, labels).item() >= other.least_value
    assert make(name, average="samples").least_value == 0


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
def test_equal_points_and_zero_vectors_have_finite_gradients(name, kind):
    loss = make(name, distance=kind)
    embeddings = torch.zeros(4, 3, dtype=torch.float64)
    embeddings[1:3] = 1.0
    if name in MEAN_FIELD:
        with torch.no_grad():
            loss.fields[0] = 1.0
            loss.fields[1] = 0.0
    embeddings.requires_grad_()
    loss(embeddings, torch.tensor([0, 0, 0, 1])).backward()
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().max() < 100
    assert name in PAIR or loss.fields.grad.isfinite().all()


@every_loss()
def test_one_hot_labels_give_exactly_the_values_of_class_indices_of_any_integer_dtype(name):
    loss = make(name)
    embeddings, labels, _ = loops.random_batch(5)
    hot = torch.nn.functional.one_hot(labels, 5)
    kinds = [hot.bool(), hot.float(), hot.bfloat16(), *(hot.to(dtype) for dtype in INTEGERS)]
    expected = found(loss, embeddings, labels)
    for given in (*kinds, *(labels.to(dtype) for dtype in INTEGERS)):
        assert same_bits(found(loss, embeddings, given), expected)


@every_loss(MEAN_FIELD)
@pytest.mark.parametrize("labels_each", [None, 3])
def test_without_checks_the_value_is_the_same(name, labels_each):
    embeddings, labels, _ = loops.random_batch(7, labels_each=labels_each)
    extra = {} if labels_each is None else {"max_labels_per_sample": 4}
    unchecked = found(make(name, check=False, **extra), embeddings, labels)
    assert_equal_to(unchecked, found(make(name), embeddings, labels), relative=1e-12)


@every_loss(MEAN_FIELD)
@pytest.mark.parametrize("labels_each", [None, 2])
def test_without_checks_the_forward_pass_asks_the_device_for_nothing(name, labels_each):
    # Fake tensors have no values: whatever needs one on the host raises.
    extra = {} if labels_each is None else {"max_labels_per_sample": labels_each}
    with FakeTensorMode(allow_non_fake_inputs=False):
        labels = torch.randint(5, (7,)) if labels_each is None else torch.randint(2, (7, 5))
        embeddings = torch.randn(7, 3, requires_grad=True)
        loss = weiss.make_loss(name, 5, 3, check=False, reg_weight=1.0, **extra)
        loss(embeddings, labels).backward()
        with pytest.raises((UnsupportedFakeTensorException, RuntimeError, AttributeError)):
            weiss.make_loss(name, 5, 3)(embeddings, labels)


@every_loss(MEAN_FIELD)
@pytest.mark.parametrize("check", [True, False])
def test_nothing_larger_than_batch_by_classes_is_ever_formed(name, check):
    loss = weiss.make_loss(name, 400, 4, check=check)
    embeddings, labels = torch.randn(8, 4, requires_grad=True), torch.randint(400, (8,))
    with LargestTensor() as largest:
        loss(embeddings, labels).backward()
    assert largest.numel <= 8 * 401


@every_loss(MEAN_FIELD)
@pytest.mark.parametrize("labels_each", [None, 2])
def test_with_checks_there_is_one_transfer(name, labels_each, monkeypatch):
    transfers = []
    for reading in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
        original = getattr(torch.Tensor, reading)

        def counted(self, *args, _reading=reading, _original=original, **kwargs):
            transfers.append(_reading)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, reading, counted)
    embeddings, labels, _ = loops.random_batch(8, labels_each=labels_each)
    loss = make(name)
    transfers.clear()
    loss(embeddings, labels)
    assert transfers == ["tolist"]


@every_loss(["contrastive", "mf_cwms"])
def test_a_compiled_loss_gives_the_same_value(name):
    with warnings.catch_warnings(action="ignore"):  # the compiler's own imports warn
        torch._dynamo.reset()
        loss = make(name, check=False).float()
        compiled = torch.compile(loss, fullgraph=True)
        embeddings, labels, _ = loops.random_batch(9, batch=13)
        results = [found(each, embeddings.float(), labels) for each in (compiled, loss)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_a_compiled_loss_with_checks_gives_the_same_value():
    with warnings.catch_warnings(action="ignore"):
        torch._dynamo.reset()
        loss = make("mf_contrastive")
        embeddings, labels, _ = loops.random_batch(9, batch=13)
        value = torch.compile(loss, backend="aot_eager")(embeddings, labels)
    torch.testing.assert_close(value, loss(embeddings, labels))


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in PAIR]
    + [(name, {"impl": i, "reg_weight": 0.7}) for name in MEAN_FIELD for i in IMPLEMENTATIONS],
)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_parameters_are_never_changed(name, options, kind):
    loss = make(name, distance=kind, **options)
    embeddings, labels, _ = loops.random_batch(10)
    x, given, state = embeddings.clone(), labels.clone(), copy.deepcopy(loss.state_dict())
    (3 * loss(x.requires_grad_(), given)).backward()
    assert x.detach().equal(embeddings)
    assert given.equal(labels)
    assert same_bits(loss.state_dict().values(), state.values())


@every_loss()
def test_state_dicts_and_pickles_round_trip(name):
    loss = make(name)
    embeddings, labels, _ = loops.random_batch(11)
    expected = loss(embeddings, labels)
    assert set(loss.state_dict()) == (set() if name in PAIR else {"fields"})
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    other = make(name)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(embeddings, labels), expected)
    assert torch.equal(pickle.loads(pickle.dumps(loss))(embeddings, labels), expected)
    assert torch.equal(copy.deepcopy(loss)(embeddings, labels), expected)


@every_loss(MEAN_FIELD)
def test_fields_are_one_parameter_and_move_with_to(name):
    loss = weiss.make_loss(name, 5, 3)
    assert isinstance(loss.fields, torch.nn.Parameter)
    assert loss.fields.shape == (5, 3)
    assert [key for key, _ in loss.named_parameters()] == ["fields"]
    assert loss.to(torch.bfloat16).fields.dtype == torch.bfloat16
    assert loss.to("meta").fields.device.type == "meta"


@every_loss()
def test_one_class_one_sample_is_legal_and_repels_nothing(name):
    loss = make(name, num_classes=1)
    embeddings = torch.randn(1, 3).double()
    value = loss(embeddings, torch.tensor([0]))
    assert value.isfinite()
    if name == "contrastive":
        assert value.item() == 0.0
    if name == "mf_contrastive":
        gap = 1 - torch.cosine_similarity(embeddings, loss.fields).item()
        assert value.item() == pytest.approx(max(gap - 0.02, 0))


@every_loss(MEAN_FIELD)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_larger_for_closer_classes(name, kind):
    loss = make(name, distance=kind)
    embeddings, _, _ = loops.random_batch(12)
    logits = loss.get_logits(embeddings)
    assert logits.shape == (7, 5)
    for i in range(7):
        for c in range(5):
            gap = loops.distance(kind, embeddings[i], loss.fields[c]).item()
            expected = 1 - gap if kind == "cosine" else -gap
            assert logits[i, c].item() == pytest.approx(expected, abs=1e-12)


@every_loss()
def test_printing_a_loss_shows_its_settings(name):
    loss = make(name)
    text = repr(loss)
    assert "distance='cosine'" in text
    assert repr(loss.interactions) in text
    assert name in PAIR or "num_classes=5" in text
