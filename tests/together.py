"""What several processes do in tests: spawned ones import it, those of torchrun run it.

torchrun tests/together.py ORDERS.json
"""

import json
import os
import sys

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


def talk(processes):
    """Use every way in which processes exchange values, and compare with what it must give."""
    rank, world = processes.rank, processes.size
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


def steps(data, changes, processes):
    """Take the steps of an epoch, the first in warm-up; return losses, parameters, evaluations."""
    made = prepare(tiny_recipe(data, **changes), CPU, processes)
    made.model.train()
    options = {"precision": made.stepper.precision}
    evaluate = made.experiment.evaluator.evaluate_prefixes
    untrained = evaluate(made.model, "test", (), **options)[0].summary()
    values = []
    for step, (images, labels) in enumerate(made.experiment.batches(0)):
        made.stepper.set_phase(warming_up=step == 0)
        value, embeddings, joined = made.stepper(images, labels)
        assert len(embeddings) == len(joined) == 12
        values.append(value)
    return {
        "losses": torch.stack(values),
        "model": made.model.state_dict(),
        "loss": whole_state(made.loss),
        "embeddings": made.experiment.embed_training(made.model, **options),
        "evaluation": evaluate(made.model, "test", (), **options)[0].summary(),
        "untrained": untrained,
    }


def main(orders):
    """Train a run by the command line, talk, and take the steps of every variant."""
    from weiss.cli import app

    app(orders["words"], standalone_mode=False)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    processes = meet(rank, world, orders["store"])
    talk(processes)
    variants = orders["variants"].items()
    found = {name: steps(orders["data"], changes, processes) for name, changes in variants}
    # Every process has the same network, not only the main one.
    for result in found.values():
        for value in (*result["model"].values(), *result["loss"].values()):
            mine = value.clone()
            processes.agree([value])
            assert value.equal(mine)
    if processes.is_main:
        torch.save(found, orders["found"])
    take_leave()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(json.load(file))
