"""Working inside pytorch-metric-learning: its wrappers and its trainer."""

import logging
import warnings

import pytest
import torch
from torch.utils.data import TensorDataset

import weiss

with warnings.catch_warnings(action="ignore"):
    from pytorch_metric_learning import losses, trainers


def test_pml_multiple_losses_adds_ours_to_theirs():
    embeddings, labels = torch.randn(8, 4), torch.arange(8) % 3
    ours = weiss.MeanFieldContrastiveLoss(3, 4)
    theirs = losses.ProxyAnchorLoss(3, 4)
    both = losses.MultipleLosses([ours, theirs], weights=[1.0, 0.5])
    expected = ours(embeddings, labels) + 0.5 * theirs(embeddings, labels)
    torch.testing.assert_close(both(embeddings, labels), expected)


def test_parameter_groups_see_through_multiple_losses():
    both = losses.MultipleLosses(
        [weiss.MeanFieldContrastiveLoss(3, 4), losses.ProxyAnchorLoss(3, 4)]
    )
    groups = weiss.parameter_groups(torch.nn.Linear(2, 4), both, lr=1e-3)
    assert [(group["name"], group["lr"]) for group in groups] == [
        ("network", 1e-3),
        ("fields", 2.0),
        ("proxies", 0.1),
    ]


@pytest.mark.parametrize("name", ["contrastive", "mf_cwms"])
def test_pml_metric_loss_only_trainer_trains_with_ours(name):
    torch.manual_seed(0)
    centres = torch.randn(3, 6)
    labels = torch.arange(48) % 3
    inputs = centres[labels] + 0.3 * torch.randn(48, 6)
    model = torch.nn.Linear(6, 4)
    loss = weiss.make_loss(name, 3, 4)
    before = loss(model(inputs), labels).item()
    network, *class_vectors = weiss.parameter_groups(model, loss, lr=1e-3)
    optimizers = {"trunk_optimizer": torch.optim.AdamW([network])}
    if class_vectors:
        optimizers["metric_loss_optimizer"] = torch.optim.AdamW(class_vectors)
    logging.getLogger("PML").setLevel(logging.ERROR)
    trainer = trainers.MetricLossOnly(
        models={"trunk": model},
        optimizers=optimizers,
        batch_size=16,
        loss_funcs={"metric_loss": loss},
        dataset=TensorDataset(inputs, labels),
        mining_funcs={},
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    with warnings.catch_warnings(action="ignore"):
        trainer.train(num_epochs=8)
    assert loss(model(inputs), labels).item() < before
