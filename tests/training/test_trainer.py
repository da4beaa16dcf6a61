"""A run from its recipe to its folder: what trains, when, how it ends, what it leaves behind."""

import copy
import math
import tomllib
from itertools import pairwise

import pytest
import torch
from PIL import Image
from tiny import losses, metrics, tiny_recipe, without_times

from weiss._base.processes import Processes
from weiss.kernels import plan
from weiss.losses import LOSSES
from weiss.runs import Run, Schedule, recipe_from
from weiss.training import evaluate_run, trainer
from weiss.training.fields import place_fields
from weiss.training.preparation import prepare
from weiss.training.step import Stepper

CPU = torch.device("cpu")
EPOCH_KEYS = {
    *("epoch", "phase", "steps", "loss", "lr", "images_per_second", "order"),
    *("evaluation", "seconds"),
}


def prepared(data, **changes):
    return prepare(tiny_recipe(data, **changes), CPU, Processes())


@pytest.fixture
def snapshots(monkeypatch):
    """Copies of the network and the loss at the end of every epoch, before the first at 0."""
    taken = []

    def copies(training):
        return copy.deepcopy((training.model.state_dict(), training.loss.state_dict()))

    def took_up(training, real=trainer.Training._begin_or_resume):
        real(training)
        taken.append(copies(training))

    def closed(training, real=trainer.Training._close_epoch):
        taken.append(copies(training))
        real(training)

    monkeypatch.setattr(trainer.Training, "_begin_or_resume", took_up)
    monkeypatch.setattr(trainer.Training, "_close_epoch", closed)
    return taken


# The folder


def test_a_finished_run_holds_everything(finished):
    for name in ("recipe.toml", "metrics.jsonl", "result.json", "model.safetensors", "card.md"):
        assert (finished / name).is_file(), name
    for name in ("learning_curves.png", "order_parameters.png"):
        with Image.open(finished / "plots" / name) as image:
            assert image.format == "PNG"
    assert len(Run(finished).checkpoints.files()) == 1
    # Nothing half-written, no lock.
    assert [path.name for path in finished.rglob(".*")] == []


def test_the_recipe_of_a_run_is_complete_and_gives_the_same_run_again(finished, stripes, run):
    resolved = recipe_from(str(finished))
    assert resolved.train.batch_size == 12
    assert resolved.train.sampler == "shuffled"
    assert resolved.train.precision == "fp32"
    assert resolved.augment.size == resolved.evaluate.size == resolved.evaluate.resize == 32
    assert resolved.made_with["device"] == "CPU"
    assert resolved.backbone.pooling == "avg"
    # As every argument of the loss.
    arguments = {"alpha": 0.01, "beta": 80.0, "delta": 0.2, "delta_as": "distance"}
    arguments |= {"reg_weight": 0.0, "reg_scale": "paper", "distance": "cosine"}
    assert resolved.loss.arguments == {**arguments, "average": "classes"}
    # Filling it in again changes nothing.
    again = prepare(resolved, CPU, Processes()).recipe
    assert again.as_dict() == resolved.as_dict()
    written = tomllib.loads((finished / "recipe.toml").read_text())
    assert again.as_dict() == written
    folder = run(train__epochs=5)
    one, two = ([without_times(line) for line in metrics(each)] for each in (folder, finished))
    assert one == two


def test_every_epoch_is_a_line_of_metrics(finished):
    lines = metrics(finished)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["phase"] for line in lines] == ["warm-up", *["training"] * 4]
    assert [line["steps"] for line in lines] == [3, 6, 9, 12, 15]
    for line in lines:
        assert set(line) == EPOCH_KEYS | {"gain"} | ({"before"} if line is lines[0] else set())
        assert set(line["lr"]) == {"network", "fields"}
        assert set(line["order"]) == {"class_mean_length", "residual", "violating_share"}
        assert math.isfinite(line["loss"])
        assert line["seconds"] > 0
        assert line["images_per_second"] > 0


def test_the_result_is_the_best_epoch_and_its_model_measures_the_same_to_the_last_bit(finished):
    result, lines = Run(finished).result(), metrics(finished)
    best = max(lines, key=lambda line: line["evaluation"]["map_at_r"])
    assert len({line["evaluation"]["map_at_r"] for line in lines}) > 1
    assert result["epoch"] == best["epoch"]
    for name, value in best["evaluation"].items():
        assert result[name] == value
    assert evaluate_run(finished, device="cpu").summary() == best["evaluation"]
    facts = {"loss": "mf_cwms", "epochs": 5, "steps": 15, "stopped_early": False}
    assert {**facts, "measured_on": "test"}.items() <= result.items()
    assert 0 < result["seconds_to_best"] <= result["seconds"]


@pytest.mark.parametrize("best", [1, 2, 3])
def test_best_means_what_the_recipe_says(run, monkeypatch, best):
    names = ("map_at_r", "precision_at_1", "r_precision")

    def evaluated(training, model, split):
        return {name: float(number == training.at.epoch) for number, name in enumerate(names)}

    monkeypatch.setattr(trainer.Training, "_evaluate", evaluated)
    folder = run(evaluate__metric=names[best - 1])
    assert Run(folder).result()["epoch"] == best


def test_the_model_of_a_run_comes_with_its_loss_and_a_card(finished):
    run = Run(finished)
    assert len(run.model_facts()["class_names"]) == 6
    assert run.loss().fields.shape == (6, 16)
    embedded = run.model()(torch.zeros(2, 3, 32, 32))
    assert embedded.shape == (2, 16)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(2))
    card = (finished / "card.md").read_text()
    assert f"{100 * run.result()['map_at_r']:.2f}" in card
    assert "6 training classes" in card
    assert "32 x 32" in card


# What trains


@pytest.mark.parametrize("freeze", ["none", "statistics", "all"])
def test_warm_up_moves_head_and_fields_only(run, snapshots, freeze):
    run(backbone__freeze_bn=freeze, train__warmup_epochs=2, train__epochs=3)
    (before, loss_before), _, (warm, loss_warm), (after, _) = snapshots
    is_buffer = {name: "running" in name or "tracked" in name for name in before}
    is_norm = {
        name: name.rpartition(".")[0] + ".running_mean" in before and not is_buffer[name]
        for name in before
    }
    assert sum(is_norm.values()) == 2 * sum(name.endswith("running_mean") for name in before)
    for name, value in before.items():
        kept, moved = warm[name].equal(value), not after[name].equal(warm[name])
        if name.startswith("head"):
            assert not kept, name
            assert moved, name
        elif is_buffer[name]:
            assert kept == (freeze != "none"), name
            assert moved == (freeze == "none"), name
        else:
            assert kept, name
            assert moved == (freeze != "all" or not is_norm[name]), name
    assert not loss_warm["fields"].equal(loss_before["fields"])


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_trains(run, name):
    changes = {"optim__class_lr": "none"} if "mf_" not in name else {}
    folder = run(loss__name=name, train__epochs=1, train__warmup_epochs=0, **changes)
    assert math.isfinite(losses(folder)[0])
    recipe = recipe_from(str(folder))
    is_pairs = LOSSES[name].sampling == "pairs"
    assert recipe.train.sampler == ("per_class" if is_pairs else "shuffled")
    if not is_pairs and "mf_" not in name:
        assert recipe.optim.class_lr == pytest.approx(100 * recipe.optim.lr)
    assert Run(folder).result()["loss"] == name


@pytest.mark.parametrize(("name", "precision"), [("mf_cwms", "fp32"), ("mf_contrastive", "bf16")])
def test_the_loss_falls_and_retrieval_gets_better(run, name, precision):
    changes = {"train__precision": precision, "train__epochs": 8, "schedule__every": 4}
    folder = run(loss__name=name, **changes)
    fallen = losses(folder)
    assert fallen[-1] < fallen[3] < fallen[0]
    found = [line["evaluation"]["map_at_r"] for line in metrics(folder)]
    assert max(found) > found[0] + 0.2
    tensors = Run(folder).model().state_dict().values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32, torch.int64}


def test_optimisers_are_built_as_the_recipe_says(stripes):
    sgd = prepared(stripes, optim__name="sgd", optim__momentum=0.7, optim__weight_decay=0.01)
    group = sgd.stepper.optimizer.param_groups[0]
    assert (type(sgd.stepper.optimizer), group["momentum"]) == (torch.optim.SGD, 0.7)
    assert group["weight_decay"] == 0.01
    rms = prepared(stripes, optim__name="rmsprop", optim__momentum=0.6).stepper.optimizer
    assert (type(rms), rms.param_groups[0]["momentum"]) == (torch.optim.RMSprop, 0.6)
    adamw = prepared(stripes).stepper.optimizer
    assert type(adamw) is torch.optim.AdamW
    assert {g["name"]: g["lr"] for g in adamw.param_groups} == {"network": 0.01, "fields": 0.05}


def test_what_the_gradient_skipped_stands_in_every_line(run, capsys):
    changes = {"loss__name": "mf_contrastive", "loss__impl": "streaming", "train__batch_size": 4}
    lines = metrics(run("some", loss__skip="on", quiet=False, **changes))
    shares = [line["skipped"] for line in lines]
    assert all(0 <= share <= 1 for share in shares)
    assert any(shares)
    assert f"skipped {100 * shares[-1]:.1f} %" in capsys.readouterr().out
    plain = run("all", loss__skip="off", **changes)
    assert all("skipped" not in line for line in metrics(plain))
    assert losses(plain) == pytest.approx([line["loss"] for line in lines], rel=1e-4)


def test_training_skips_far_pairs_by_itself_where_there_are_many(run, monkeypatch):
    monkeypatch.setattr(plan, "REFERENCE_DISTANCES", 0)
    monkeypatch.setattr(plan, "SKIPPED_PAIRS_CPU", 1)
    assert all("skipped" in line for line in metrics(run(loss__name="mf_contrastive")))
    assert all("skipped" not in line for line in metrics(run("cwms", loss__name="mf_cwms")))


@pytest.mark.parametrize("kind", ["clip_value", "clip_norm"])
def test_clipping_bounds_what_reaches_the_optimiser(stripes, kind):
    bound = 1e-3
    largest = {}
    for limit in (0, bound):
        off = {"optim__clip_value": 0, "optim__clip_norm": 0}
        made = prepared(stripes, **{**off, f"optim__{kind}": limit})
        made.stepper.set_phase(warming_up=False)
        seen = []

        def step(*_, made=made, seen=seen, **__):
            gradients = torch.cat([p.grad.flatten() for p in made.model.parameters()])
            seen.append(float(gradients.abs().max() if kind == "clip_value" else gradients.norm()))
            seen.append(made.loss.fields.grad.clone())

        made.stepper.optimizer.step = step
        made.model.train()
        made.stepper(*next(made.experiment.batches(0)))
        largest[limit], fields = seen
        # Class vectors are no part of the network: theirs stay as they are.
        torch.testing.assert_close(fields, largest.setdefault("fields", fields))
    assert largest[0] > 2 * bound
    assert largest[bound] == pytest.approx(bound, rel=1e-3)


def test_learning_rates_follow_the_schedule(run):
    changes = {"schedule__name": "cosine", "train__epochs": 4, "schedule__ramp_epochs": 1.5}
    folder = run(**changes)
    schedule = Schedule(name="cosine", ramp_epochs=1.5)
    for line in metrics(folder):
        # As of the middle of the last step.
        factor = schedule.factor(line["epoch"] - 1 + 2.5 / 3, 4)
        assert line["lr"] == pytest.approx({"network": 1e-2 * factor, "fields": 0.05 * factor})


@pytest.mark.parametrize("how", ["alternating", "class_mean"])
def test_fields_that_do_not_learn_take_no_gradient_step(run, snapshots, how):
    folder = run(fields__how=how, loss__name="mf_contrastive", train__epochs=5, fields__every=2)
    fields = [loss["fields"] for _, loss in snapshots]
    changed = [not a.equal(b) for a, b in pairwise(fields)]
    # Alternating: solved at the beginning of every second epoch, still in between.
    assert changed == ([True, False, True, False, True] if how == "alternating" else [True] * 5)
    assert losses(folder)[-1] < 0.9 * losses(folder)[0]
    assert all(set(line["lr"]) == {"network"} for line in metrics(folder))


def test_class_mean_fields_are_running_means_of_the_embeddings(stripes, run, monkeypatch):
    seen = []

    def watched(stepper, images, labels, real=Stepper.__call__):
        before = stepper.loss.fields.clone()
        value, embeddings, joined = real(stepper, images, labels)
        assert stepper.loss.fields.equal(before)
        seen.append((before, embeddings, joined))
        return value, embeddings, joined

    monkeypatch.setattr(Stepper, "__call__", watched)
    run(fields__how="class_mean", fields__momentum=0.75, train__epochs=2)
    for (before, embeddings, labels), (after, _, _) in pairwise(seen):
        for c in range(6):
            expected = before[c]
            if (labels == c).any():
                expected = 0.75 * before[c] + 0.25 * embeddings[labels == c].mean(dim=0)
            torch.testing.assert_close(after[c], expected)


def test_alternating_fields_start_from_class_means_and_lower_the_loss(stripes):
    from weiss.losses.self_consistency import class_means_of

    recipe = tiny_recipe(stripes, fields__how="alternating", fields__passes=20)
    made = prepare(recipe, CPU, Processes())
    embeddings = made.experiment.embed_training(made.model, precision=made.stepper.precision)
    labels = made.experiment.train_labels()
    with torch.no_grad():
        made.loss.fields.copy_(class_means_of(embeddings, labels, 6))
        at_means = float(made.loss(embeddings, labels))
        made.loss.fields.normal_()
    place_fields(made.loss, made.recipe.fields, 0, made.experiment, lambda: embeddings)
    assert float(made.loss(embeddings, labels)) < at_means
    assert not made.loss.fields.requires_grad
    assert made.loss.fields.grad is None


def test_images_with_several_labels_train(run, stripes, tmp_path):
    rows = ["path,labels,split"]
    for path in sorted(stripes.rglob("*.png")):
        number = int(path.parent.name.removeprefix("class"))
        split = "train" if number < 6 else "test"
        rows.append(f"{path},{path.parent.name}|third{number % 3},{split}")
    listed = tmp_path / "list.csv"
    listed.write_text("\n".join(rows) + "\n")
    folder = run(data=listed, data__shared_classes="true", train__epochs=4)
    assert Run(folder).result()["num_classes"] == 9
    assert losses(folder)[-1] < losses(folder)[0]
    assert evaluate_run(folder, device="cpu").summary()["map_at_r"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_trains(run):
    folder = run(train__compile="true", train__epochs=2, loss__name="mf_contrastive")
    assert losses(folder) == pytest.approx(
        losses(run("plain", train__epochs=2, loss__name="mf_contrastive")), rel=1e-3
    )


# A batch in parts


@pytest.mark.parametrize(
    ("name", "parts", "device"),
    [
        ("mf_cwms", 2, "cpu"),
        ("contrastive", 3, "cpu"),
        ("proxy_anchor", 2, "cpu"),
        pytest.param("mf_cwms", 3, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_batch_in_parts_has_the_loss_and_gradients_of_the_whole(
    stripes, monkeypatch, name, parts, device
):
    # TF32, the default of convolutions, has a thousandth of the digits that this is about.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for accumulate in (1, parts):
        changes = {"train__per_class": 2, "train__accumulate": accumulate}
        changes |= {"backbone__freeze_bn": "statistics", "train__precision": "fp32"}
        recipe = tiny_recipe(stripes, loss__name=name, optim__class_lr=0.1, **changes)
        made = prepare(recipe, torch.device(device), Processes())
        made.stepper.set_phase(warming_up=False)
        made.model.train()
        value, _, _ = made.stepper._backward(*next(made.experiment.batches(0)))
        parameters = {**dict(made.model.named_parameters()), **dict(made.loss.named_parameters())}
        found.append((value.detach(), {k: p.grad for k, p in parameters.items()}))
    (whole, gradients), (sum_of_parts, gradients_of_parts) = found
    torch.testing.assert_close(sum_of_parts, whole, rtol=1e-5, atol=0)
    assert gradients.keys() == gradients_of_parts.keys()
    for key, gradient in gradients.items():
        off = (gradient - gradients_of_parts[key]).norm() / gradient.norm().clamp_min(1e-12)
        assert gradient.norm() > 0, key
        assert off < (1e-5 if device == "cpu" else 1e-3), key


def test_batch_normalisation_sees_an_image_of_a_batch_in_parts_once(stripes):
    made = prepared(stripes, train__accumulate=3)
    made.stepper.set_phase(warming_up=False)
    made.model.train()
    images, labels = next(made.experiment.batches(0))
    oracle = copy.deepcopy(made.model)
    with torch.no_grad():
        for part in images.chunk(3):
            oracle(part)
    made.stepper(images, labels)
    buffers = dict(oracle.named_buffers())
    assert int(buffers["trunk.stem.1.num_batches_tracked"]) == 3
    for name, value in made.model.named_buffers():
        torch.testing.assert_close(value, buffers[name], rtol=0, atol=0)
    momenta = {m.momentum for m in made.model.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert momenta == {0.1}


# When it is measured, and when it ends


@pytest.fixture
def scores(monkeypatch):
    """Evaluation gives these scores in turn, then the last one for ever."""
    given = []

    def evaluated(training, model, split):
        score = given.pop(0) if len(given) > 1 else given[0]
        return {"map_at_r": score, "r_precision": score, "precision_at_1": score}

    monkeypatch.setattr(trainer.Training, "_evaluate", evaluated)
    return given


@pytest.mark.parametrize(
    ("given", "warmup", "patience", "last"),
    [
        ([0.5, 0.4], 0, 3, 4),  # best in epoch 1
        ([0.5, 0.4, 0.3, 0.6, 0.1], 0, 3, 7),  # the third epoch of patience brings a better one
        ([0.5, 0.4, 0.3, 0.2, 0.6], 0, 3, 4),  # the fourth comes too late
        ([0.9, 0.1], 2, 3, 5),  # best in warm-up: patience begins after it
        ([0.5, 0.5], 0, 2, 3),  # as good is not better
        ([0.5, 0.4], 0, 0, 9),  # 0: never
        ([0.1 * number for number in range(9)], 0, 1, 9),
    ],
)
def test_early_stopping_waits_the_whole_patience_and_no_longer(
    run, scores, given, warmup, patience, last
):
    scores += given
    folder = run(train__warmup_epochs=warmup, train__patience=patience, train__epochs=9)
    assert len(metrics(folder)) == last
    result = Run(folder).result()
    assert result["epochs"] == last
    assert result["stopped_early"] == (last < 9)
    assert result["map_at_r"] == max(line["evaluation"]["map_at_r"] for line in metrics(folder))


def ends_in_the_benchmark(given, every, patience):
    """The last epoch of the reality check's own program: asked after an evaluation alone, ``>``."""
    best = best_epoch = epoch = 0
    while True:
        epoch += 1
        if epoch % every == 0:
            score = given[min(epoch // every, len(given)) - 1]
            if score > best:
                best, best_epoch = score, epoch
            if epoch - best_epoch > patience:
                return epoch


@pytest.mark.parametrize(
    ("name", "patience", "without_gain"), [("cub", 9, 5), ("cars", 14, 3), ("sop", 39, 2)]
)
@pytest.mark.parametrize("given", [[0.5, 0.4], [0.1, 0.05, 0.2, 0.2]])
def test_the_reality_check_ends_a_run_when_the_benchmark_does(
    run, scores, name, patience, without_gain, given
):
    recipe = recipe_from(f"{name}_mlrc")
    every = recipe.evaluate.every
    scores += given
    folder = run(
        train__patience=recipe.train.patience,
        train__epochs=recipe.train.epochs,
        train__warmup_epochs=recipe.train.warmup_epochs,
        train__sampler="per_class",
        train__steps=1,
        evaluate__every=every,
    )
    lines = metrics(folder)
    assert len(lines) == ends_in_the_benchmark(given, every, patience)
    assert "evaluation" in lines[-1], "epochs were trained that nobody evaluates"
    measured = [line["epoch"] for line in lines if "evaluation" in line]
    best = Run(folder).result()["epoch"]
    assert sum(epoch > best for epoch in measured) == without_gain


def test_evaluation_takes_place_every_so_many_epochs_and_at_the_end(run):
    folder = run(evaluate__every=3, train__epochs=7)
    assert [n["epoch"] for n in metrics(folder) if "evaluation" in n] == [3, 6, 7]


def test_held_out_classes_do_not_train_and_the_test_set_is_looked_at_once(run, monkeypatch):
    looked = []

    def evaluated(training, model, split, real=trainer.Training._evaluate, **options):
        looked.append(split)
        return real(training, model, split, **options)

    monkeypatch.setattr(trainer.Training, "_evaluate", evaluated)
    folder = run(evaluate__on="held_out", evaluate__folds=3, train__epochs=6, seed=2)
    assert looked == ["valid"] * 6 + ["test"]
    result = Run(folder).result()
    # The best network is looked at, and here it is not the last.
    assert result["epoch"] < 6
    assert result["num_classes"] == 4
    assert result["measured_on"] == "held-out training classes"
    assert result["queries"] == 12
    assert result["test"]["queries"] == 24
    assert result["map_at_r"] == max(n["evaluation"]["map_at_r"] for n in metrics(folder))
    assert evaluate_run(folder, device="cpu").summary()["map_at_r"] == result["map_at_r"]
    on_test = evaluate_run(folder, split="test", device="cpu").summary()
    assert on_test == result["test"]
    trained = set(Run(folder).model_facts()["class_names"])
    table = prepare(recipe_from(str(folder)), CPU, Processes()).experiment.table
    for split in ("valid", "test"):
        names = {table.class_names[c] for c in table.part(split).classes()}
        assert len(names) == {"valid": 2, "test": 4}[split]
        assert not names & trained
    assert "looked at once" in (folder / "card.md").read_text()


def test_data_without_a_test_part_train_and_nothing_is_measured(run, capsys):
    folder = run(data__split="all", quiet=False)
    assert "measured on nothing: the data have no test part" in capsys.readouterr().out
    result = Run(folder).result()
    assert "map_at_r" not in result
    measured = [result[name] for name in ("measured_on", "epoch", "num_classes")]
    assert measured == ["nothing", 3, 10]
    assert all("evaluation" not in line for line in metrics(folder))
    assert Run(folder).model()(torch.zeros(1, 3, 32, 32)).shape == (1, 16)
    assert "Nothing was measured" in (folder / "card.md").read_text()


def test_tensorboard_gets_its_numbers_under_the_run_folder(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run(track__with='["tensorboard"]')
    events = [path for path in folder.rglob("events.out.tfevents*") if path.stat().st_size]
    assert events
    found = {}
    for path in events:
        log = EventAccumulator(str(path))
        log.Reload()
        for tag in log.Tags()["scalars"]:
            found[tag] = [event.value for event in log.Scalars(tag)]
    assert found["loss"] == pytest.approx(losses(folder), rel=1e-5)
    expected = [line["evaluation"]["map_at_r"] for line in metrics(folder)]
    assert found["evaluation.map_at_r"] == pytest.approx(expected, rel=1e-5)


def test_a_network_without_a_head_trains_and_its_recipe_has_the_size(run):
    folder = run(backbone__head="none", backbone__embedding_size="none", train__warmup_epochs=0)
    recipe = Run(folder).recipe()["backbone"]
    assert (recipe["head"], recipe["embedding_size"], recipe["pooling"]) == ("none", 16, "avg")
    model = Run(folder).model()
    assert model.embedding_size == 16
    assert not [name for name in model.state_dict() if name.startswith("head.")]
    assert Run(folder).loss().fields.shape[1] == 16


def test_images_are_kept_with_the_side_that_the_recipe_names(run, stripes, tmp_path):
    """So that small crops of large images show what the images show."""
    folder = tmp_path / "large"
    for path in stripes.rglob("*.png"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize((300, 330)).save(folder / path.parent.name / path.name)
    kept = {}
    for side in (256, 280, "original"):
        given = prepared(folder, data__side=side)
        assert given.recipe.data.side == side
        kept[side] = tuple(map(int, given.experiment.pipeline._store.sizes[0]))
    assert kept == {256: (281, 256), 280: (308, 280), "original": (330, 300)}
    # A finished run can be measured with larger images.
    larger = prepared(folder, data__side="auto", evaluate__resize=270)
    assert tuple(map(int, larger.experiment.pipeline._store.sizes[0])) == (297, 270)
    with pytest.raises(ValueError, match="data.side must be at least 32 pixels, which evaluation"):
        prepared(stripes, data__side=31)
    with pytest.raises(ValueError, match="data.side must be a whole number of at least 1, auto or"):
        recipe_from("glyphs", {"data.side": "half"})
