"""Which part of a network `weiss train` trains: what is asked for, and where nobody has chosen."""

import re

import pytest
import torch
from safetensors.torch import save_file
from tiny import settings, write_stripes
from typed import refused, weiss

from weiss.backbones import make_backbone
from weiss.runs import Run, recipe_from, shipped_recipes
from weiss.runs.frozen import frozen_settings, is_frozen_by_default
from weiss.training import results

WEIGHTS = {"backbone.weights": "weights.pth", "train.device": "cpu"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images, and beside it weights of a small network to start from."""
    folder = tmp_path_factory.mktemp("own")
    torch.manual_seed(5)
    trunk = make_backbone("small", 16, widths=(8, 16), channels=3).trunk
    save_file(trunk.state_dict(), folder / "weights.safetensors")
    write_stripes(folder / "photos", num_classes=5, per_class=4)
    return folder / "photos"


@pytest.fixture
def trained(photos, tmp_path, monkeypatch):
    """Train on the folder by the command line; return what it said and its recipe."""
    monkeypatch.setattr(results, "draw", lambda *_: None)

    def one(*options, weights=photos.parent / "weights.safetensors"):
        changes = {"backbone__weights": weights, "data__cache": tmp_path / "cache"}
        lines = settings(**changes, train__batch_size=4)
        # As the recipe, or as an option, has it.
        lines = [line for line in lines if not line.startswith(("train.warmup", "optim.", "sched"))]
        words = [word for line in lines for word in ("--set", line)]
        done = weiss("train", photos, "--out", tmp_path / "run", *words, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr, recipe_from(tmp_path / "run")

    return one


def test_on_a_cpu_own_photos_train_on_features_of_a_pretrained_network(trained, tmp_path):
    text, recipe = trained()
    assert "To train all of it: --full" in text
    assert "features of the frozen trunk, of 20 images" in text
    assert (recipe.backbone.train, recipe.fields.start) == ("frozen", "class_means")
    assert (recipe.optim.lr, recipe.optim.class_lr) == (1e-3, 2.0)
    assert recipe.train.epochs == 3  # --set wins
    assert (tmp_path / "cache" / "features").is_dir()


def test_all_of_it_is_one_option_away(trained):
    text, recipe = trained("--full")
    assert "--full" not in text
    assert (recipe.backbone.train, recipe.optim.lr, recipe.train.warmup_on) == (
        "all",
        1e-4,
        "images",
    )


def test_stages_are_unfrozen_after_three_quarters_of_the_epochs(trained, tmp_path):
    text, recipe = trained("--unfreeze", 1, "--set", "train.epochs=4", "--set", "augment.views=1")
    assert "--full" not in text
    assert "and 1 random crops of each of" in text
    assert (recipe.backbone.train, recipe.train.warmup_epochs) == ("last:1", 3)
    phases = [line["phase"] for line in Run(tmp_path / "run").metrics()]
    assert phases == [*3 * ["warm-up"], "training"]


def test_a_resumed_run_trains_what_it_trained_before(trained, tmp_path):
    trained("--full")
    text, recipe = trained("--resume")  # by a user who forgets --full
    assert "--full" not in text
    assert recipe.backbone.train == "all"


def test_a_recipe_with_frozen_or_unfrozen_stages_trains_whole_again(trained, tmp_path):
    trained("--unfreeze", 1, "--set", "augment.views=1", "--set", "train.epochs=4")
    run = str(tmp_path / "run")
    assert recipe_from(run, frozen_settings(run, {})).optim.layer_decay == 1.0
    # Another loss has other needs than fields that start at class means.
    assert recipe_from(run).fields.start == "class_means"
    assert recipe_from(run, {"loss.name": "proxy_anchor"}).fields.start == "random"
    assert recipe_from(run, {"fields.how": "class_mean"}).fields.start == "random"


def test_a_run_among_the_photos_is_refused(photos):
    message = refused("train", photos, "--out", photos / "run")
    assert "--out must be a folder of its own" in message
    assert not (photos / "run").exists()


def test_a_recipe_with_the_name_of_a_folder_is_told_apart_from_it(photos):
    note = "photos is read as the recipe of this name, and trains what that says"
    options = ("--out", "photos/run")  # which is refused, so that nothing trains
    assert note in refused("train", "photos", *options, cwd=photos.parent)
    assert note not in refused("train", "photos/", *options, cwd=photos.parent)


def test_warm_up_in_all_epochs_is_noted(trained):
    text, _ = trained("--full", "--set", "train.epochs=1", "--set", "train.warmup_epochs=1")
    assert "only the head and the class vectors train" in text


def test_a_network_from_random_weights_trains_whole(trained):
    text, recipe = trained(weights="scratch")
    assert "--full" not in text
    assert recipe.backbone.train == "all"


@pytest.mark.parametrize("source", [None, "glyphs", "cub", "cub_resnet50", "photos"])
def test_what_has_a_name_trains_as_it_says(source):
    assert not is_frozen_by_default(source, WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"loss.name": "proxy_anchor"}, True),
        ({"train.epochs": 3, "augment.views": 4}, True),
        ({"backbone.train": "lora"}, False),
        ({"backbone.train": "all"}, False),
        ({"backbone.weights": "scratch"}, False),
        ({"backbone.name": "small"}, False),
        ({"train.device": "cuda"}, False),
        ({"backbone.head": "none"}, False),
        ({"backbone.head": "relu"}, True),
        ({"optim.layer_decay": 0.5}, False),
    ],
)
def test_own_images_train_on_features_where_nobody_has_chosen_otherwise(photos, changes, expected):
    given = {"train.device": "cpu", **changes}
    assert is_frozen_by_default(str(photos), given) == expected


def test_a_machine_with_a_gpu_trains_the_whole_network(photos, monkeypatch):
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        assert is_frozen_by_default(str(photos), {}) is not there


@pytest.mark.parametrize("unfreeze", [0, 2])
@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_recipe_with_pretrained_weights_can_be_frozen(name, unfreeze):
    if recipe_from(name).backbone.weights in (None, "scratch"):
        with pytest.raises(ValueError, match="must have pretrained weights to start from"):
            frozen_settings(name, {}, unfreeze)
        return
    recipe = recipe_from(name, frozen_settings(name, {}, unfreeze))
    assert recipe.backbone.train == (f"last:{unfreeze}" if unfreeze else "frozen")
    assert recipe.is_on_features(0)
    starts_at_means = recipe.loss.has_fields and recipe.fields.how == "joint"
    assert recipe.fields.start == ("class_means" if starts_at_means else "random")


REFUSED = {
    "both": (("--full", "--frozen"), "--full must not be given with --frozen"),
    "also both": (("--full", "--unfreeze", "1"), "--full must not be given with --unfreeze"),
    "none": (("--unfreeze", "0"), "--unfreeze must be at least 1"),
    "twice": (("--frozen", "--set", "backbone.train=lora"), "must not be set with --frozen"),
    "resumed": (("--resume", "--out", "x", "--full"), "--full must be left out to resume a run"),
    "random": (("--frozen",), "must have pretrained weights .* 'small' starts from random ones"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused(case, tmp_path):
    words, message = REFUSED[case]
    assert re.search(message, refused("train", *words, cwd=tmp_path))
    assert not list(tmp_path.iterdir())
