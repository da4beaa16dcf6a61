"""A run folder: what is written is read again, and what is damaged or missing is refused."""

import pytest
import torch
from safetensors.torch import save_file
from tiny import damage

import weiss
from weiss.backbones import make_backbone
from weiss.runs import Kept, Run, build_backbone, build_loss, to_toml
from weiss.runs.checkpoints import State
from weiss.runs.folder import (
    CARD,
    KEPT_ON_RESUME,
    METRICS,
    MODEL,
    RECIPE,
    RESULT,
    TEST_EMBEDDINGS,
    BusyFolderError,
)

SIZE = 8
CLASSES = ["Ä pie", "b/2", "c", "平均"]
FACTS = {"epoch": 3, "metrics": {"map_at_r": 0.25}, "seconds": 1.5, "class_names": CLASSES}
BACKBONES = {
    "small": {"name": "small", "widths": [4, 6], "channels": 3, "head": "relu", "pooling": "gem"},
    "resnet18": {"name": "resnet18", "weights": "scratch", "freeze_bn": "all"},
    "features": {"name": "features", "num_features": 5},
}
LOSSES = {
    "mf_cwms": {"name": "mf_cwms", "beta": 40.0, "delta": 0.8, "delta_as": "cosine"},
    "proxy_anchor": {"name": "proxy_anchor", "margin": 0.2},
    "contrastive": {"name": "contrastive", "neg_margin": 0.5},
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def recipe(backbone="small", loss="mf_cwms"):
    section = {**BACKBONES[backbone], "embedding_size": SIZE}
    return {"seed": 3, "backbone": section, "loss": LOSSES[loss], "made_with": {"weiss": "0"}}


def images(model, number=4):
    if model.input.kind == "vectors":
        return torch.randn(number, 5)
    return torch.randint(256, (number, 3, 40, 32), dtype=torch.uint8)


def trained(settings):
    """Modules with nothing left of how they began: parameters, buffers, counters."""
    model = build_backbone(settings["backbone"])
    loss = build_loss(settings["loss"], len(CLASSES), SIZE)
    with torch.no_grad():
        for tensor in [*model.state_dict().values(), *loss.state_dict().values()]:
            if tensor.is_floating_point():
                tensor.mul_(torch.rand_like(tensor) + 0.5).add_(0.01 * torch.rand_like(tensor))
            else:
                tensor.fill_(17)
    return model, loss


def assert_same_state(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def finished(folder, backbone="small", loss="mf_cwms"):
    run, settings = Run(folder), recipe(backbone, loss)
    model, criterion = trained(settings)
    run.write_recipe(to_toml(settings))
    run.write_model(Kept.now(model, criterion, FACTS))
    return run, model, criterion


# Round trips


def test_every_file_is_read_as_it_was_written(tmp_path):
    run, _, _ = finished(tmp_path / "runs" / "one")
    lines = [{"epoch": 1, "loss": 0.1 + 0.2, "order": {}}, {"epoch": 2, "note": "β\u2028\n"}]
    result = {"map_at_r": 1 / 3, "epoch": 2, "names": CLASSES, "none": None}
    run.write_metrics(lines[:1])
    assert run.metrics() == lines[:1]
    run.write_metrics(lines)
    run.write_result(result)
    run.write_card("# Modell\n\n§ 1\n")
    run.checkpoints.save(5, State({"x": torch.ones(2)}, {"step": 5}))
    again = Run(str(run.folder))
    assert again.recipe() == recipe()
    assert again.metrics() == lines
    assert again.result() == result
    assert again.model_facts() == FACTS
    assert again.checkpoints.newest().facts == {"step": 5}
    assert (again.folder / CARD).read_text(encoding="utf-8") == "# Modell\n\n§ 1\n"
    names = {path.name for path in run.folder.iterdir()}
    assert names == {RECIPE, METRICS, RESULT, CARD, MODEL, "state"}


def test_a_run_has_begun_with_its_recipe_and_ended_with_its_result(tmp_path):
    run = Run(tmp_path / "new")
    assert (run.exists(), run.is_finished()) == (False, False)
    assert run.metrics() == []
    assert run.model_facts() is None
    assert run.checkpoints.newest() is None
    assert list(tmp_path.iterdir()) == []  # reading makes no folder
    run.write_recipe("seed = 0\n")
    assert (run.exists(), run.is_finished()) == (True, False)
    run.write_result({})
    assert (run.exists(), run.is_finished()) == (True, True)


# The model and its loss


# The file of a network does not depend on the loss.
@pytest.mark.parametrize(
    ("backbone", "loss"),
    [("small", "mf_cwms"), ("features", "proxy_anchor"), ("resnet18", "contrastive")],
)
def test_the_model_gives_the_same_embeddings_to_the_last_bit(tmp_path, backbone, loss):
    run, model, criterion = finished(tmp_path, backbone, loss)
    torch.manual_seed(5)
    found = run.model()
    assert not found.training
    x = images(model)
    with torch.no_grad():
        embeddings = found(x)
        assert torch.equal(embeddings, model.eval()(x))
    assert not torch.equal(embeddings[0], embeddings[1])
    assert_same_state(found, model)
    assert found.freeze_bn == model.freeze_bn
    restored, labels = run.loss(), torch.arange(4)
    assert type(restored) is type(criterion)
    assert_same_state(restored, criterion)
    assert torch.equal(restored(embeddings, labels), criterion(embeddings, labels))


@pytest.mark.parametrize("name", weiss.LOSSES)
def test_the_loss_of_any_run_comes_back(tmp_path, name):
    run = Run(tmp_path)
    settings = {**recipe("features"), "loss": {"name": name}}
    model, loss = trained(settings)
    run.write_recipe(to_toml(settings))
    run.write_model(Kept.now(model, loss, FACTS))
    assert_same_state(run.loss(), loss)


def test_what_is_kept_is_the_network_of_that_moment(tmp_path):
    run, model, loss = finished(tmp_path)
    x = images(model)
    with torch.no_grad():
        expected = model.eval()(x)
        kept = Kept.now(model, loss, FACTS)
        for parameter in [*model.parameters(), *loss.parameters()]:
            parameter.add_(1.0)
        assert not torch.equal(model(x), expected)
        run.write_model(kept)
        assert torch.equal(run.model()(x), expected)


@pytest.mark.parametrize(
    ("backbone", "weights"), [("small", "gone.safetensors"), ("resnet18", "imagenet")]
)
def test_loading_a_run_needs_no_weights_from_elsewhere(tmp_path, backbone, weights):
    run, model, _ = finished(tmp_path, backbone)
    settings = recipe(backbone)
    settings["backbone"]["weights"] = weights
    run.write_recipe(to_toml(settings))
    assert_same_state(run.model(), model)


def test_another_network_can_start_from_the_trunk_of_a_run_if_it_is_alike_and_whole(tmp_path):
    run, model, _ = finished(tmp_path)
    weights = {"weights": run.folder / MODEL}
    other = make_backbone("small", 32, **weights, widths=(4, 6), channels=3)
    assert_same_state(other.trunk, model.trunk)
    assert other.embedding_size == 32
    with pytest.raises(ValueError, match="weights must be those of small, .*of another shape"):
        make_backbone("small", SIZE, **weights, widths=(5, 6), channels=3)
    with pytest.raises(ValueError, match="weights must be those of ResNet-18"):
        make_backbone("resnet18", SIZE, **weights)
    damage(run.folder / MODEL)
    with pytest.raises(ValueError, match="weights must be a whole file; .*checksum. Delete it"):
        make_backbone("small", SIZE, **weights, widths=(4, 6), channels=3)


def test_the_model_comes_to_the_device_it_is_asked_for(tmp_path):
    run, _, _ = finished(tmp_path, "features")
    assert {p.device.type for p in run.model("meta").parameters()} == {"meta"}
    assert run.loss(torch.device("meta")).fields.device.type == "meta"


# Mistakes


@pytest.mark.parametrize("what", ["recipe", "result", "model", "loss"])
def test_a_folder_without_a_run_is_refused_and_a_run_of_nearly_that_name_suggested(tmp_path, what):
    (tmp_path / "cub-mg").mkdir()
    for folder in (tmp_path / "no" / "such", tmp_path / "cub-mg"):
        with pytest.raises(FileNotFoundError, match=f"{folder} is none. Train one: .*{folder}"):
            getattr(Run(folder), what)()
    Run(tmp_path / "cub-mf").write_recipe("")
    with pytest.raises(FileNotFoundError, match=r"is none. Did you mean 'cub-mf'\? Train one"):
        getattr(Run(tmp_path / "cub-mff"), what)()


def test_what_an_unfinished_run_lacks_is_named(tmp_path):
    run = Run(tmp_path)
    run.write_recipe(to_toml(recipe()))
    with pytest.raises(FileNotFoundError, match=f"no result.json yet.*--resume --out {tmp_path}"):
        run.result()
    for what in (run.model, run.loss):
        with pytest.raises(FileNotFoundError, match="there is no model.safetensors yet"):
            what()
    assert run.model_facts() is None


@pytest.mark.parametrize(
    ("what", "how"), [("model", "a bit"), ("loss", "cut off"), ("model_facts", "empty")]
)
def test_a_damaged_model_is_refused(tmp_path, what, how):
    run, _, _ = finished(tmp_path)
    path = tmp_path / MODEL
    if how == "a bit":
        damage(path)
    else:
        path.write_bytes(path.read_bytes()[: 1000 if how == "cut off" else 0])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged.*\. Copy it again, or tra"):
        getattr(run, what)()


def test_weights_of_somebody_else_are_no_model_of_a_run(tmp_path):
    run, model, _ = finished(tmp_path)
    save_file(model.state_dict(), tmp_path / MODEL)
    for what in (run.model, run.loss, run.model_facts):
        with pytest.raises(ValueError, match="must be a model that a run wrote; it is not."):
            what()


def test_a_failed_write_leaves_what_was_there(tmp_path):
    run, _, _ = finished(tmp_path)
    run.write_result({"epoch": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.write_result({"tensor": torch.ones(1)})
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.write_metrics([{"epoch": 1}, {"epoch": object()}])
    with pytest.raises(UnicodeEncodeError):
        run.write_card("half a character: \ud800")
    assert run.result() == {"epoch": 1}
    assert run.metrics() == []
    assert {path.name for path in tmp_path.iterdir()} == {RECIPE, MODEL, RESULT}


def test_a_run_that_continues_is_not_finished_and_keeps_what_it_writes_again(tmp_path):
    run = Run(tmp_path)
    for name in KEPT_ON_RESUME:
        (tmp_path / name).write_text("")
    run.reopen()
    assert not run.is_finished()
    removed = {RESULT, CARD, TEST_EMBEDDINGS}
    assert {path.name for path in tmp_path.iterdir()} == set(KEPT_ON_RESUME) - removed


def test_a_locked_run_is_refused_and_leftovers_of_killed_programs_are_removed(tmp_path):
    run = Run(tmp_path / "run")
    run.make_folder()
    left = [f".{name}.0123abcd.tmp" for name in (RECIPE, METRICS, RESULT, CARD, MODEL)]
    left += ["state/.000000009.safetensors.0123abcd.tmp", "plots/.curves.png.0123abcd.tmp"]
    foreign = [".mine.tmp", "sub/.recipe.toml.0123abcd.tmp"]
    for name in (*left, *foreign):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text("half")
    with run.locked():
        assert not any((run.folder / name).exists() for name in left)
        assert all((run.folder / name).exists() for name in foreign)
        with (
            pytest.raises(BusyFolderError, match="must not be written by two programs"),
            run.locked(),
        ):
            pass
    with run.locked():
        pass
    with pytest.raises(ValueError, match="a folder that can be made; .*mine.tmp/x cannot"):
        Run(run.folder / ".mine.tmp" / "x").make_folder()


def test_the_recipe_of_an_old_run_opens_under_the_present_names_of_its_keys(tmp_path):
    run, settings = Run(tmp_path), recipe()
    settings["loss"] = {"name": "mf_cwms", "products": "float32", "delta": 0.8}
    settings["optim"] = {"lr": 0.1, "touched_rows": True}
    run.write_recipe(to_toml(settings))
    assert list(run.recipe()["loss"]) == ["name", "matmul_dtype", "delta"]
    assert run.recipe()["optim"] == {"lr": 0.1}


# Building from sections


def test_building_leaves_the_recipe_as_it_was_and_asks_for_weights_of_photographs():
    section, loss = {"name": "resnet18", "embedding_size": SIZE}, dict(LOSSES["mf_cwms"])
    with pytest.raises(ValueError, match="weights must be given for 'resnet18'"):
        build_backbone(section)
    build_backbone(section, weights=False)
    build_loss(loss, 4, SIZE)
    assert (section["name"], loss) == ("resnet18", LOSSES["mf_cwms"])


BROKEN_RECIPES = [
    ("seed = = 3", "recipe.toml must be TOML; .*line 1"),
    ("seed = 3", r"recipe.toml must be the whole .* lacks \[backbone\], "),
    ('loss = 5\n[backbone]\nname = "small"', "recipe.toml must hold sections; loss is none: 5"),
    ('[loss]\nname = ["ms"]\n[backbone]\nname = "small"', r"name its loss in text; got \['ms'\]"),
    (to_toml(recipe()).replace("embedding_size = 8", ""), "embedding_size must be .* got None"),
    (to_toml(recipe()).replace("embedding_size = 8", "embedding_size = 18"), "must fit the "),
]


@pytest.mark.parametrize(("text", "message"), BROKEN_RECIPES)
def test_a_recipe_that_was_changed_by_hand_is_refused(tmp_path, text, message):
    run, _, _ = finished(tmp_path)
    run.write_recipe(text)
    for build in (run.model, run.loss):
        with pytest.raises((ValueError, TypeError), match=message):
            build()


def test_results_and_metrics_that_were_changed_by_hand_are_named(tmp_path):
    run, _, _ = finished(tmp_path)
    (tmp_path / RESULT).write_text("")
    with pytest.raises(ValueError, match="result.json must be JSON; it is cut off or changed"):
        run.result()
    with pytest.warns(UserWarning, match="result.json must be JSON.* it counts as unfinished"):
        assert run.whole_result() is None
    (tmp_path / METRICS).write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(ValueError, match="metrics.jsonl, line 2 must be JSON"):
        run.metrics()
    (tmp_path / METRICS).write_text('{"epoch": 1}\n{"epo')
    with pytest.warns(UserWarning, match="metrics.jsonl, line 2 must .* last line is left out"):
        assert run.metrics() == [{"epoch": 1}]
    (tmp_path / METRICS).write_text('{"epoch": 1}\n{"epoch": 2}')
    assert run.metrics() == [{"epoch": 1}, {"epoch": 2}]


def test_a_changed_digit_of_a_result_or_of_its_metrics_is_noticed(tmp_path):
    run, _, _ = finished(tmp_path)
    run.write_metrics([{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}])
    run.write_result({"map_at_r": 0.5, "epoch": 2})
    lines, result = ((tmp_path / name).read_text() for name in (METRICS, RESULT))
    for changed in (lines.replace("0.25", "0.35"), lines.splitlines()[0] + "\n", ""):
        (tmp_path / METRICS).write_text(changed)
        with pytest.raises(
            ValueError, match="metrics.jsonl must match its checksum in result.json"
        ):
            run.metrics()
    (tmp_path / METRICS).write_text(lines)
    assert len(run.metrics()) == 2
    (tmp_path / RESULT).write_text(result.replace("0.5", "0.7"))
    with pytest.raises(ValueError, match="result.json must match its checksum.*Resuming the run"):
        run.result()
    (tmp_path / RESULT).write_text('{"map_at_r": 0.5, "epoch": 2}')  # of an older version
    assert run.result() == {"map_at_r": 0.5, "epoch": 2}


HOSTILE = {
    "a list": ("[]", "must hold an object with names; got list"),
    "depth": ('{"a": ' * 100_000, "must be JSON"),
    "a mark": ('\ufeff{"epoch": 1}', "must be JSON; .*BOM"),
    "digits": ('{"epoch": ' + "9" * 5000 + "}", "must be JSON"),
    "a huge number": ('{"epoch": ' + "9" * 400 + "}", "what Weiss wrote; epoch is no such value"),
    "no number": ('{"seconds": NaN}', "seconds is no such value: a finite number; got nan"),
    "text": ('{"map_at_r": "0.5"}', "map_at_r is no such value: a valid number; got '0.5'"),
    "words": ('{"loss": {"name": "ms"}}', "loss is no such value: a valid string; got {"),
    "a part": ('{"test": {"map_at_r": []}}', r"test.map_at_r is no such value: .*got \[\]"),
    "truth": ('{"epoch": true}', "epoch is no such value: a valid integer; got True"),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_what_no_run_writes_is_refused_by_name(tmp_path, kind):
    run, _, _ = finished(tmp_path)
    text, law = HOSTILE[kind]
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(ValueError, match=f"result.json {law}" if "must" in law else law):
        run.result()
    if kind not in ("text", "words", "a part"):
        (tmp_path / METRICS).write_text(text + "\n")
        with pytest.raises(ValueError, match="metrics.jsonl, line 1 must"):
            run.metrics()


def test_files_that_are_far_too_large_are_not_read(tmp_path):
    run, _, _ = finished(tmp_path)
    for name, read in ((RESULT, run.result), (METRICS, run.metrics)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**31)  # which takes no room
        with pytest.raises(ValueError, match=f"{name} must have at most .*2,147,483,648. Restore"):
            read()


@pytest.mark.parametrize(
    ("facts", "what"),
    [({**FACTS, "metrics": {"map_at_r": "0.9"}}, "metrics.map_at_r"), ({}, "class_names")],
)
def test_facts_of_a_model_that_no_run_writes_are_refused(tmp_path, facts, what):
    run, model, loss = finished(tmp_path)
    run.write_model(Kept.now(model, loss, facts))
    for read in (run.model_facts, run.loss):
        with pytest.raises(ValueError, match=f"model.safetensors .* {what} is no such value"):
            read()
