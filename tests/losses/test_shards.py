"""Processes that share the classes of a loss compute what one process would."""

import pytest
import sharded
import torch
import wrapped

import weiss
from weiss._base.processes import gather_batch
from weiss.losses.shards import even_sizes, is_sharded, shard_classes, whole_fields


@pytest.mark.dist
@pytest.mark.parametrize("world", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_shards_compute_what_one_process_does(world, tmp_path):
    torch.multiprocessing.spawn(sharded.compute, (world, tmp_path / "store"), nprocs=world)


@pytest.mark.dist
def test_fused_kernels_know_shards(tmp_path, monkeypatch):
    """On a CPU, where Triton runs them in Python."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.multiprocessing.spawn(sharded.compute_fused, (2, tmp_path / "store"), nprocs=2)


@pytest.mark.dist
@pytest.mark.slow
def test_two_processes_with_a_network_in_fsdp_train_as_one_does(tmp_path):
    torch.multiprocessing.spawn(wrapped.compute, (2, tmp_path / "store"), nprocs=2)


def test_one_process_keeps_all_classes():
    loss = weiss.make_loss("mf_cwms", 5, 3)
    fields = loss.fields.detach().clone()
    assert shard_classes(loss) is loss
    assert not is_sharded(loss)
    assert loss.fields.equal(fields)
    assert whole_fields(loss).equal(fields)
    x, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 4])
    assert gather_batch(x, labels) == (x, labels)


@pytest.mark.parametrize(("total", "number"), [(11, 4), (3, 4), (8, 4), (1, 1)])
def test_shards_differ_by_at_most_one_class(total, number):
    sizes = even_sizes(total, number)
    assert len(sizes) == number
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1


def test_only_fields_are_shared():
    with pytest.raises(TypeError, match="loss must be a MeanFieldLoss for shard_classes"):
        shard_classes(weiss.make_loss("contrastive", 5, 3))
    with pytest.raises(ValueError, match="sizes must be 1 whole numbers"):
        shard_classes(weiss.make_loss("mf_cwms", 5, 3), sizes=[4])


def test_rows_and_labels_of_a_part_belong_together():
    with pytest.raises(ValueError, match="as many rows as each other for gather_batch; got 2 and"):
        gather_batch(torch.randn(2, 3), torch.zeros(3, dtype=torch.long))
