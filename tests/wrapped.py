"""What processes do in tests that share the network by FSDP2; spawned ones must import it."""

import inspect

import together
import torch
from budgets import MEAN_FIELD
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import weiss
from weiss._base.processes import gather_batch
from weiss.losses.shards import is_sharded, shard_classes, whole_fields

CLASSES, SIZE, STEPS = 11, 5, 4
WAYS = ["beside", "whole, Shard(0)"]
if "ignored_params" in inspect.signature(fully_shard).parameters:  # torch 2.7
    WAYS.append("inside, left out")


class Both(nn.Module):
    """A network and its loss as one module, as training programs like to wrap them."""

    def __init__(self, network, loss):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, inputs, labels):
        embeddings, classes = gather_batch(self.network(inputs), labels)
        return self.loss(embeddings, classes)


def make(name):
    """Return a network and a loss in float64, the same in every process."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, SIZE)).double()
    return network, weiss.make_loss(name, CLASSES, SIZE).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(10, 7, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (10,), generator=generator)


def train(network, loss, step_of):
    """Take some steps; return the loss of each."""
    groups = weiss.parameter_groups(network, loss, lr=1e-2, class_lr=0.1)
    optimizer = torch.optim.AdamW(groups)
    values = []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = step_of(step)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return torch.stack(values)


def alone(name):
    """Train in one process; return the losses, the network's parameters and the fields."""
    network, loss = make(name)

    def step_of(step):
        inputs, labels = batch(step)
        return loss(network(inputs), labels)

    values = train(network, loss, step_of)
    return values, [p.detach() for p in network.parameters()], loss.fields.detach()


def shared(name, way, rank, world):
    """Train the same with a wrapped network, each process on its part of the batch."""
    network, loss = make(name)
    mesh = init_device_mesh("cpu", (world,))
    for layer in (network[0], network[2]):
        fully_shard(layer, mesh=mesh)
    if way == "whole, Shard(0)":
        fully_shard(loss, mesh=mesh)
        assert loss.fields.placements == (Shard(0),)
    else:
        shard_classes(loss)
        assert is_sharded(loss)
    both = Both(network, loss)
    if way == "inside, left out":
        fully_shard(both, mesh=mesh, ignored_params={loss.fields})
    else:
        fully_shard(network, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in network.parameters())
    assert isinstance(loss.fields, DTensor) == (way == "whole, Shard(0)")
    shares = [slice(0, 4), slice(4, 10)]  # unequal parts

    def step_of(step):
        inputs, labels = batch(step)
        return both(inputs[shares[rank]], labels[shares[rank]])

    values = train(network, loss, step_of)
    fields = loss.fields.full_tensor() if way == "whole, Shard(0)" else whole_fields(loss)
    return values, [p.full_tensor().detach() for p in network.parameters()], fields.detach()


def compute(rank, world, path):
    """Compare both for every loss and every way to wrap."""
    together.meet(rank, world, path)
    for name in MEAN_FIELD:
        values, parameters, fields = alone(name)
        assert not torch.allclose(fields, make(name)[1].fields)
        for way in WAYS:
            found = shared(name, way, rank, world)
            for ours, one in zip(
                (found[0], *found[1], found[2]), (values, *parameters, fields), strict=True
            ):
                torch.testing.assert_close(
                    ours, one, rtol=1e-9, atol=1e-9, msg=lambda m, t=f"{name}, {way}": f"{t}: {m}"
                )
    together.take_leave()
