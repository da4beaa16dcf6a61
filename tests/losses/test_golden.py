"""Values and gradients of the four losses by an independent slow float64 program."""

import json
from pathlib import Path

import pytest
import torch

import weiss

CASES = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def relative_error(given, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    return ((given.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['loss']}-{c['distance']}")
def test_values_and_gradients_are_those_of_the_oracle(case, dtype):
    arguments = dict(case["params"], distance=case["distance"])
    if "reg" in arguments:
        arguments["reg_weight"] = arguments.pop("reg")
    embeddings = torch.tensor(case["embeddings"], dtype=dtype, requires_grad=True)
    fields = torch.tensor(case.get("fields", [[0.0]]), dtype=dtype)
    loss = weiss.make_loss(case["loss"], *fields.shape, **arguments).to(dtype)
    if "fields" in case:
        loss.load_state_dict({"fields": fields})
    value = loss(embeddings, torch.tensor(case["labels"]))
    value.backward()
    assert value.dtype == dtype
    assert value.item() == pytest.approx(case["value"], rel=TOLERANCE[dtype])
    assert relative_error(embeddings.grad, case["grad_embeddings"]) < TOLERANCE[dtype]
    if "fields" in case:
        assert relative_error(loss.fields.grad, case["grad_fields"]) < TOLERANCE[dtype]


def test_the_oracle_covers_every_loss_and_distance():
    covered = {(case["loss"], case["distance"]) for case in CASES}
    names = ("contrastive", "cwms", "mf_contrastive", "mf_cwms")
    assert covered == {(name, kind) for name in names for kind in ("cosine", "euclidean")}
