"""What processes that share classes do in tests; spawned ones must be able to import it."""

import copy
from dataclasses import dataclass, field

import pytest
import together
import torch
from budgets import FUSED, MEAN_FIELD, found

import weiss
from weiss._base.processes import gather_batch
from weiss.kernels import constraint, streaming
from weiss.losses.contrastive import Contrastive
from weiss.losses.shards import even_sizes, is_sharded, shard_classes, whole_fields, whole_state
from weiss.theory.interactions import LinearLink

CLASSES, SIZE = 11, 5
BATCHES = {
    "some classes": [3, 9, 3, 0, 10, 5, 9, 4, 3],
    "of the first process alone": [0, 1, 0, 0],
    "of the last process alone": [10, 9, 10],
    "one class": [7, 7, 7],
    "one sample": [6],
    "all classes": [*range(CLASSES), 2, 2, 8],
}
MANY_LABELS = torch.zeros(7, CLASSES, dtype=torch.long)
for row, classes in enumerate([(0,), (3, 9), (10, 0, 4), (3,), (5, 6), (9,), (1, 2, 3, 4)]):
    MANY_LABELS[row, list(classes)] = 1


@dataclass
class Case:
    """A loss, a batch, and how many classes each process takes."""

    name: str
    labels: torch.Tensor
    sizes: list[int] | None = None
    classes: int = CLASSES
    options: dict = field(default_factory=dict)

    def make(self):
        torch.manual_seed(3)
        loss = weiss.make_loss(self.name, self.classes, SIZE, **self.options).double()
        return loss, torch.randn(len(self.labels), SIZE, dtype=torch.float64)


def cases(world):
    """Yield what shards must compute like one process."""
    uneven = {3: [4, 0, 7], 4: [1, 6, 0, 4]}[world]
    empty = [[CLASSES, *[0] * (world - 1)], [*[0] * (world - 1), CLASSES]]
    some = torch.tensor(BATCHES["some classes"])
    for name in MEAN_FIELD:
        for distance in ("cosine", "euclidean"):
            for labels, average, reg_weight in (
                (some, "classes", 0.0),
                (some, "samples", 0.7),
                (MANY_LABELS, "classes", 0.7),
                (MANY_LABELS, "samples", 0.0),
            ):
                options = {"distance": distance, "average": average, "reg_weight": reg_weight}
                yield Case(name, labels, options=options)
            options = {"distance": distance, "reg_weight": 0.7}
            for number, classes in enumerate(BATCHES.values()):
                check = bool(number % 2) == (distance == "cosine")
                yield Case(name, torch.tensor(classes), options={**options, "check": check})
            for sizes in (uneven, *empty):
                yield Case(name, some, sizes, options=options)
            yield Case(name, MANY_LABELS, uneven, options={**options, "check": False})
        for number in (1, world - 1):  # fewer classes than processes
            yield Case(name, torch.tensor([number - 1, 0]), None, number, options=options)
        yield Case(name, torch.arange(world), None, world, options={"reg_weight": 0.7})
        yield Case(name, some, uneven, options={"reg_weight": 0.7, "reg_scale": "released"})
        for labels, sizes in ((some, None), (some, uneven), (MANY_LABELS, empty[0])):
            yield Case(name, labels, sizes, options={"reg_weight": 0.7, "fields_per_class": 2})
    for sizes in (None, uneven, empty[0]):
        yield Case("mf_contrastive", some, sizes, options={"skip": "on"})


def compute(rank, world, path):
    """Compute every case whole and in shards, and compare; then all else that shards can do."""
    processes = together.meet(rank, world, path)
    whole_blocks = constraint.WIDTH, streaming.ELEMENTS
    for number, case in enumerate(cases(world)):
        # In one block of classes, and in several.
        small = (
            dict.fromkeys(("cpu", "cuda"), 2),
            dict.fromkeys(("cpu", "cuda"), 3 * len(case.labels)),
        )
        constraint.WIDTH, streaming.ELEMENTS = small if number % 2 else whole_blocks
        loss, x = case.make()
        value, by_x, by_fields = found(loss, x, case.labels, 3)
        start, sizes = loss.fields.detach().clone(), case.sizes or even_sizes(case.classes, world)
        shard_classes(loss, sizes=case.sizes)
        here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        assert loss.fields.equal(start[here]), case
        parts = found(loss, x, case.labels, 3)
        for part, whole in zip(parts, (value, by_x, by_fields[here]), strict=True):
            message = f"process {rank} of {world}, {case}"
            torch.testing.assert_close(
                part, whole, rtol=1e-9, atol=1e-9, msg=lambda m, t=message: f"{t}\n{m}"
            )
    rows_are_put_together(processes)
    steps_are_those_of_one_process(processes)
    parts_of_a_batch_are_joined(processes)
    what_cannot_be_is_refused(processes)
    groups_keep_to_themselves(processes)
    together.take_leave()


def compute_fused(rank, world, path):
    """Compare the fused kernels in shards with the plain formula of one process."""
    together.meet(rank, world, path)
    labels = torch.tensor(BATCHES["some classes"])
    empty = [CLASSES, *[0] * (world - 1)]
    for name, sizes, skip, each in (
        *((name, None, "off", 1) for name in FUSED),
        ("mf_contrastive", empty, "on", 1),
        ("mf_cwms", empty, "off", 1),
        ("mf_rest_ms", empty, "off", 1),
        ("mf_cwms", None, "off", 3),
        ("mf_rest_ms", None, "off", 2),
    ):
        options = {"skip": skip, "reg_weight": 0.7, "check": skip == "off"}
        options["fields_per_class"] = each
        loss, x = Case(name, labels, options=options).make()
        loss, x = loss.float(), x.float()
        plain = copy.deepcopy(loss)
        plain.impl, plain.skip = "reference", "off"
        value, by_x, by_fields = found(plain, x, labels)
        loss.impl = "triton"
        shard_classes(loss, sizes=sizes)
        here = slice(loss.shard.first, loss.shard.first + len(loss.fields))
        parts = found(loss, x, labels)
        for part, whole in zip(parts, (value, by_x, by_fields[here]), strict=True):
            torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-4)
    together.take_leave()


def rows_are_put_together(processes):
    loss, x = Case("mf_cwms", torch.tensor([0, 4, 4])).make()
    fields, logits = loss.fields.detach().clone(), loss.get_logits(x).detach()
    whole = copy.deepcopy(loss)
    known = loss.fields
    assert shard_classes(loss) is loss
    assert loss.fields is known
    assert is_sharded(loss)
    assert not is_sharded(whole)
    assert loss.num_classes == CLASSES
    assert loss.state_dict()["fields"].equal(loss.fields)
    assert len(loss.fields) == even_sizes(CLASSES, processes.size)[processes.rank]
    assert f"classes_here={loss.shard.first}:" in repr(loss)
    assert whole_fields(loss).equal(fields)
    assert whole_fields(whole).equal(fields)
    assert whole_fields(whole).data_ptr() != whole.fields.data_ptr()
    assert whole_state(loss)["fields"].equal(fields)
    kept = whole_state(loss, wanted=processes.is_main)["fields"]
    assert kept.equal(fields if processes.is_main else fields[:0])
    # Any samples in each process.
    rows = slice(0, 1 + processes.rank % 2)
    torch.testing.assert_close(loss.get_logits(x[rows]), logits[rows], rtol=1e-9, atol=1e-9)
    # A state of one process fits any shards, alone or inside another module.
    with torch.no_grad():
        whole.fields.mul_(-2)
    loss.load_state_dict(whole.state_dict())
    assert whole_fields(loss).equal(-2 * fields)
    nested = torch.nn.ModuleDict({"loss": loss})
    nested.load_state_dict({"loss.fields": fields})
    assert whole_fields(loss).equal(fields)
    loss.load_state_dict(loss.state_dict())
    assert whole_fields(copy.deepcopy(loss)).equal(fields)
    # A loss that is only looked at, one that is gone back through twice, one in half precision.
    labels = torch.tensor([0, 4, 4])
    whole.load_state_dict({"fields": fields})
    with torch.no_grad():
        torch.testing.assert_close(loss(x, labels), whole(x, labels), rtol=1e-9, atol=1e-9)
    once, twice = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss(once, labels).backward()
    value = loss(twice, labels)
    value.backward(retain_graph=True)
    value.backward()
    torch.testing.assert_close(twice.grad, 2 * once.grad)
    half, single = x.bfloat16().requires_grad_(), x.bfloat16().float().requires_grad_()
    loss(half, labels).backward()
    whole.impl = "streaming"
    whole(single, labels).backward()
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(half.grad.float(), single.grad, rtol=0.05, atol=0.05)


def steps_are_those_of_one_process(processes):
    some = torch.tensor(BATCHES["some classes"])
    for make in (
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ):
        for sizes in (None, [CLASSES, *[0] * (processes.size - 1)]):
            one, x = Case("mf_contrastive", some).make()
            shared = copy.deepcopy(one)
            optimizers = make([one.fields]), make([shared.fields])
            shard_classes(shared, sizes=sizes)
            for step in range(4):
                for loss, optimizer in zip((one, shared), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss(x.roll(step, 0), some).backward()
                    optimizer.step()
            torch.testing.assert_close(whole_fields(shared), one.fields, rtol=1e-9, atol=1e-9)


def parts_of_a_batch_are_joined(processes):
    sizes = [3, 0, 5, 1][: processes.size]
    rank, rows = processes.rank, sum(sizes)
    here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    hot = torch.nn.functional.one_hot(labels, CLASSES)
    loss, _ = Case("mf_cwms", labels).make()
    one = torch.full((6, SIZE), 0.1, dtype=torch.float64) + torch.eye(6, SIZE)
    one, two = one.clone().requires_grad_(), one.clone().requires_grad_()
    expected = loss(inputs @ one, labels)
    expected.backward()
    expected = expected.detach()
    shard_classes(loss)
    for averaged in (True, False):
        for given in (labels, labels.to(torch.int16), hot, hot.bool()):
            two.grad = None
            joined, classes = gather_batch(inputs[here] @ two, given[here], averaged=averaged)
            assert classes.equal(given)
            assert classes.dtype == given.dtype
            value = loss(joined, classes)
            value.backward()
            torch.distributed.all_reduce(two.grad)
            two.grad /= processes.size if averaged else 1
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(two.grad, one.grad, rtol=1e-9, atol=1e-9)


def groups_keep_to_themselves(processes):
    """Two groups, each with a loss and a batch of its own; of three processes one is alone."""
    ranks = list(range(processes.size))
    groups = [torch.distributed.new_group(members) for members in (ranks[::2], ranks[1::2])]
    number, place = processes.rank % 2, processes.rank // 2
    num_members = len(ranks[number::2])
    labels = torch.tensor(BATCHES["some classes"]) + number * torch.tensor([0, 1] + [0] * 7)
    loss, x = Case("mf_cwms", labels, options={"reg_weight": 0.2 + number}).make()
    value, by_x, _ = found(loss, x, labels)
    fields = loss.fields.detach().clone()
    shard_classes(loss, groups[number])
    assert len(loss.fields) == even_sizes(CLASSES, num_members)[place]
    cut = [slice(0, 4), slice(4, 9)][place] if num_members > 1 else slice(0, 9)
    joined, classes = gather_batch(x[cut].requires_grad_(), labels[cut], groups[number])
    assert joined.equal(x)
    assert classes.equal(labels)
    again, by_joined, _ = found(loss, joined.detach(), classes)
    torch.testing.assert_close(again, value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(by_joined, by_x, rtol=1e-9, atol=1e-9)
    assert whole_fields(loss).equal(fields)


def what_cannot_be_is_refused(processes):
    loss, x = Case("mf_cwms", torch.tensor([0, 4])).make()
    labels = torch.tensor([0, 4])
    for sizes in ([CLASSES], [CLASSES - 1, *[0] * (processes.size - 1)], [-1, CLASSES + 1]):
        with pytest.raises(ValueError, match=f"sizes must be {processes.size} whole numbers"):
            shard_classes(loss, sizes=[*sizes, *[0] * (processes.size - 2)][: len(sizes) + 5])
    plain = copy.deepcopy(loss)
    plain.impl = "reference"
    with pytest.raises(ValueError, match="impl must not be 'reference' for shard_classes"):
        shard_classes(plain)
    other = copy.deepcopy(loss)
    with torch.no_grad():
        other.fields += 0.1 * processes.rank
    with pytest.raises(ValueError, match="must be the same in every process"):
        shard_classes(other)
    shard_classes(loss)
    with pytest.raises(ValueError, match="Call it once"):
        shard_classes(loss)
    loss.impl = "reference"
    with pytest.raises(ValueError, match="must be whole for impl='reference'"):
        loss(x, labels)
    loss.impl, loss.fluctuations = "auto", "second"
    with pytest.raises(ValueError, match="fluctuations must be 'none' .* share the classes"):
        loss(x, labels)
    loss.fluctuations = "none"
    loss.interactions = WithAnotherLink()
    with pytest.raises(ValueError, match="must be whole for links other than"):
        loss(x, labels)


class AnotherLink(LinearLink):
    """A link whose derivative nobody knows."""


class WithAnotherLink(Contrastive):
    """A description with it."""

    repulsion_link = AnotherLink()
