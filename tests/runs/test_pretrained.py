"""A network that is not trained is a run of no epochs."""

import pytest
import torch

from weiss._base import downloads
from weiss._base.tensor_files import write_tensors
from weiss.backbones import make_backbone
from weiss.runs import Run, evaluate_run, pretrained_run, recipe_from, recipe_from_dict
from weiss.runs.card import not_trained


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights of a ResNet-18."""
    torch.manual_seed(0)
    trunk = make_backbone("resnet18", weights="scratch").trunk
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    write_tensors(path, trunk.state_dict(), {"arch": "ResNet-18"})
    return path


def test_a_pretrained_network_is_a_run_without_classes_loss_and_head(weights, tmp_path):
    run = pretrained_run(tmp_path / "run", "resnet18", weights)
    model = Run(run.folder).model()
    whole = make_backbone("resnet18", weights=weights, head="none", pooling="avg")
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    torch.testing.assert_close(model(images), whole.eval()(images))
    assert run.model_facts()["class_names"] == []
    result = run.result()
    assert (result["loss"], result["epoch"], result["num_classes"]) == ("untrained", 0, 0)
    recipe = recipe_from_dict(run.recipe())
    assert (recipe.backbone.head, recipe.backbone.pooling) == ("none", "avg")
    assert not_trained(recipe) == "ResNet-18 from net.safetensors, not trained"
    card = (run.folder / "card.md").read_text()
    assert "ResNet-18 from net.safetensors, not trained: every class is one that it never" in card
    assert "Epoch" not in card
    assert "MFCWMS" not in card
    assert "too good" not in card


def test_it_is_measured_like_any_run_on_all_classes_of_other_data(weights, stripes, tmp_path):
    run = pretrained_run(tmp_path / "run", "resnet18", weights)
    found = evaluate_run(run, data=str(stripes), overrides={"data.num_workers": 0}, device="cpu")
    assert found.summary()["queries"] == 60
    assert len(found.per_class()) == 10


@pytest.mark.parametrize(
    ("backbone", "words"),
    [("resnet50", "ImageNet ResNet-50 v1.5"), ("timm:vit_tiny", "pretrained timm:vit_tiny")],
)
def test_public_weights_are_called_by_their_name(backbone, words):
    changes = {"backbone.name": backbone, "backbone.weights": "imagenet"}
    assert not_trained(recipe_from("photos", changes)) == f"{words}, not trained"


@pytest.mark.parametrize(
    ("backbone", "start", "message"),
    [
        ("resnet50_v1", None, r"--weights FILE must be given for 'resnet50_v1'"),
        ("resnet5", None, r"--backbone must be one of .*got 'resnet5'. Did you mean 'resnet50'"),
        ("features", None, r"--backbone must be one of .*got 'features'"),
        ("resnet18", "nowhere.pth", r"there is no nowhere.pth"),
        ("resnet34", "FILE", r"weights must be those of ResNet-34"),
    ],
)
def test_what_cannot_be_is_refused_and_no_folder_is_made(
    weights, backbone, start, message, tmp_path
):
    with pytest.raises((ValueError, OSError), match=message):
        pretrained_run(tmp_path / "run", backbone, weights if start == "FILE" else start)
    assert not (tmp_path / "run").exists()


def test_offline_one_sentence_names_the_option(tmp_path, monkeypatch):
    def fetch(address, *_, **__):
        raise OSError(f"weights must be fetched from {address}; that failed: no route. Try again.")

    monkeypatch.setattr(downloads, "fetch", fetch)
    with pytest.raises(OSError, match="no route") as failed:
        pretrained_run(tmp_path / "run", "resnet18")
    text = str(failed.value)
    assert text.startswith("the weights of 'resnet18' must be downloaded, which failed (")
    assert text.endswith("without a connection pass a file of them: --weights FILE.")
    assert "Try again" not in text
    assert not (tmp_path / "run").exists()
