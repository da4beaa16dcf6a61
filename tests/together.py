"""What several processes of a training run do in tests; spawned ones must be able to import it."""

import os

import torch
from tiny import tiny_recipe

from weiss._base.processes import Processes
from weiss.losses.shards import whole_state
from weiss.training.preparation import prepare

CPU = torch.device("cpu")


def meet(rank, world, path):
    """Join the group of a test."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world
    )
    return Processes(rank, world, world)


def take_leave():
    """Leave the group of a test, all at once, and end this process, which has done its work.

    It ends without taking Python apart: about one time in a hundred a thread of the process group
    was still about then and aborted the process ("terminate called without an active exception").
    """
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)


def talk(rank, world, path):
    """Let processes say to each other what they can, and compare it with what it must be."""
    processes = meet(rank, world, path)
    assert processes.is_main == (rank == 0)

    part = torch.arange(6.0).view(3, 2) + 100 * rank
    joined = processes.join(part)
    expected = torch.cat([torch.arange(6.0).view(3, 2) + 100 * r for r in range(world)])
    assert joined.equal(expected)
    assert processes.owned(joined).equal(part)
    assert processes.join(torch.tensor([rank])).tolist() == list(range(world))

    for total in range(world, 3 * world + 1):
        rows = torch.arange(2.0 * total).view(total, 2)
        assert processes.collect(rows[rank::world], total).equal(rows)

    learned = torch.nn.Parameter(torch.zeros(2))
    learned.grad = torch.tensor([1.0, 10.0]) * rank
    without = torch.nn.Parameter(torch.zeros(2))
    processes.average_gradients([learned, without])
    mean = sum(range(world)) / world
    torch.testing.assert_close(learned.grad, torch.tensor([1.0, 10.0]) * mean)
    assert without.grad is None

    values, count = torch.full((3,), float(rank)), torch.tensor(rank + 5)
    processes.agree([values, count])
    assert values.tolist() == [0.0] * 3
    assert int(count) == 5

    assert processes.any(rank == world - 1, CPU)
    assert not processes.any(False, CPU)
    take_leave()


def steps(data, changes, processes, number=4):
    """Take steps, in warm-up and after it; return losses, parameters and an evaluation."""
    made = prepare(tiny_recipe(data, **changes), CPU, processes)
    made.model.train()
    untrained = made.experiment.evaluator.evaluate(
        made.model, "test", precision=made.stepper.precision
    ).summary()
    values = []
    for step, (images, labels) in enumerate(made.experiment.batches(0)):
        made.stepper.set_phase(warming_up=step == 0)
        value, embeddings, joined = made.stepper(images, labels)
        assert len(embeddings) == len(joined) == 12
        values.append(value)
        if step + 1 == number:
            break
    found = made.experiment.evaluator.evaluate(
        made.model, "test", precision=made.stepper.precision
    ).summary()
    return {
        "losses": torch.stack(values),
        "model": made.model.state_dict(),
        "loss": whole_state(made.loss),
        "embeddings": made.experiment.embed_training(made.model, precision=made.stepper.precision),
        "evaluation": found,
        "untrained": untrained,
    }


def train_together(rank, world, path, data, variants):
    """Take the steps of every variant, and let the main process write what came of them."""
    processes = meet(rank, world, path)
    found = {name: steps(data, changes, processes) for name, changes in variants.items()}
    # Every process has the same network, not only the main one.
    for result in found.values():
        for value in (*result["model"].values(), *result["loss"].values()):
            mine = value.clone()
            processes.agree([value])
            assert value.equal(mine)
    if processes.is_main:
        torch.save(found, f"{path}.found")
    take_leave()
