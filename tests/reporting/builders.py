"""Comparison folders of every kind, with runs that are small but whole: a seed decides the scores.

What they say is made up; how they say it is what benches, studies and the trainer write.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np

from weiss.losses import LOSSES
from weiss.runs import Run
from weiss.runs.summaries import summarised

METRICS = {"map_at_r": 1, "precision_at_1": 2.5, "r_precision": 1.4}
"""The scores of a run, and what they are in parts of the first."""
AXES = {
    "dimension": [("backbone.embedding_size", "embedding dimensions", [32, 64, 128])],
    "batch-size": [("train.batch_size", "batch size", [30, 60, 90])],
    "regularisation": [("loss.reg_weight", "λ", [0, 0.1, 100])],
    "beta-delta": [("loss.beta", "β", [40, 80]), ("loss.delta", "δ", [0.1, 0.2, 0.4])],
    "fields": [("fields.how", "fields found", ["joint", "alternating"])],
    "classes": [("num_classes", "classes", [100, 1000, 100_000])],
    "breakdown": [("spread", "spread", [0.0, 0.1, 0.4])],
}
KINDS = ("traditional", "reality-check", *AXES)
RECIPE = """seed = {seed}

[data]
name = "{data}"

[backbone]
name = "{backbone}"
embedding_size = {size}

[loss]
name = "{loss}"
beta = 80.0

[train]
epochs = 9
batch_size = 64

[evaluate]
on = "{on}"

[made_with]
weiss = "0.1"
device = "CPU & co"
"""


def write_run(
    folder,
    *,
    loss="mf_cwms",
    seed=0,
    score=0.25,
    data="cub",
    backbone="bn_inception",
    size=512,
    on="test",
    finished=True,
    test=None,
):
    """Write a run folder without a model."""
    run = Run(folder)
    words = {"seed": seed, "data": data, "backbone": backbone, "size": size, "loss": loss, "on": on}
    run.write_recipe(RECIPE.format(**words))
    scores = {name: score * factor for name, factor in METRICS.items()}
    run.write_metrics(
        [
            {
                "epoch": epoch,
                "phase": "training",
                "loss": 5.0 / epoch,
                "order": order_of(loss, epoch),
                "evaluation": {name: value * epoch / 4 for name, value in scores.items()},
            }
            for epoch in range(1, 5)
        ]
    )
    if finished:
        result = {
            **scores,
            "epoch": 4,
            "epochs": 4,
            "loss": loss,
            "seconds": 10.0 + seed,
            "images_per_second": 1234.5,
            "measured_on": "test" if on == "test" else "held-out training classes",
            "peak_gpu_memory_gb": 9.07,
        }
        run.write_result(result | ({"test": test} if test else {}))
        (run.folder / "model.safetensors").write_bytes(b"")  # nobody here loads it
    return run


def order_of(loss, epoch):
    """Order parameters as a run has them: without class vectors there is the length alone."""
    spread = (0.8, 0.9, 1.0, 1.1, 1.2)
    found = {"class_mean_length": [0.15 * epoch * factor for factor in spread]}
    if LOSSES[loss].class_lr_scale is not None:
        found["residual"] = [0.6 / epoch * factor for factor in spread]
    if loss.startswith("mf_"):
        found["violating_share"] = 0.1 / epoch
    return found


def rewrite_metrics(run, lines):
    """Write the metrics of a run and, as they have their checksum there, its result."""
    result = run.result()
    run.write_metrics(lines)
    run.write_result(result)


def forget_order(folder):
    """Rewrite every run in a folder as one that measured no order parameters."""
    for path in folder.rglob("metrics.jsonl"):
        run = Run(path.parent)
        rewrite_metrics(run, [{**line, "order": None} for line in run.metrics()])


def write_comparison(folder, kind="traditional", change=None, **options):
    """Write a comparison folder; return its summary, on which a function may work before."""
    summary = make_summary(kind, Path(folder), **options)
    if change is not None:
        change(summary)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "summary.json").write_text(json.dumps(summary))
    return summary


def make_summary(
    kind,
    folder=None,
    *,
    losses=("mf_cwms", "proxy_anchor"),
    seeds=3,
    data="cub",
    backbone="bn_inception",
    size=128,
    **changes,
):
    """Return the summary of a comparison; `changes` replace entries. In a folder write its runs."""
    random = np.random.default_rng(0)
    axes = AXES.get(kind, [])
    describe = {"data": data, "backbone": backbone, "size": size}
    rows = []
    for number, loss in enumerate(losses):
        for values in product(*(values for _, _, values in axes)):
            place = {key: value for (key, *_), value in zip(axes, values, strict=True)}
            where = "_".join(f"{key.split('.')[-1]}-{value}" for key, value in place.items())
            row = empty_row(f"{loss}/{where}" if place else loss, loss, LOSSES[loss].title)
            row |= {"at": place, "settings": {"beta": 80.0, "class_lr": 0.5}}
            rows.append(row)
            if kind == "classes":
                cost = place["num_classes"] * (1 + number) / 1000
                row["scores"] = {name: summarised([cost]) for name in ("milliseconds", "megabytes")}
            elif kind == "breakdown":
                spread = place["spread"]
                found = {"pair": 1 + spread, "mean_field": 1.0, "gap": spread, "excess": spread}
                found["spread"] = spread
                row["scores"] = {key: summarised([value]) for key, value in found.items()}
            else:
                scores = 0.24 + 0.01 * number + random.normal(0, 0.003, seeds)
                add_runs(row, kind, scores, folder, {"loss": loss, **describe})
    if kind not in ("classes", "breakdown"):
        rows.append(empty_row("untrained", "untrained", "pretrained"))
        add_scores(rows[-1], kind, [0.1])
        rows[-1]["scores"].pop("epoch", None)
    return {
        "format": 1,
        "kind": kind,
        "title": f"The {kind} comparison",
        "question": f"What does {kind} ask?",
        "data": data,
        "backbone": backbone,
        "embedding_size": size,
        "batch_size": 64,
        "measured_on": "test",
        "is_complete": True,
        "num_units": len(rows) * seeds,
        "num_done": len(rows) * seeds,
        "axes": [
            {"key": key, "label": label, "values": values, "log": kind == "classes"}
            for key, label, values in axes
        ],
        "rows": rows,
        "tests": [] if axes else [paired(kind, losses[0], other, seeds) for other in losses[1:]],
        "protocol": {"losses": list(losses), "seeds": seeds},
        "recipe": {"seed": 0, "loss": {"name": losses[0]}},
        "command": f"weiss bench {kind} {data} --losses {','.join(losses)}",
        "made_with": {"weiss": "0.1", "versions": {"torch": "2.9"}, "device": "CPU & co"},
        **changes,
    }


def empty_row(name, loss, title):
    lists = {"at": {}, "settings": {}, "runs": [], "failed": {}, "scores": {}}
    return {"name": name, "loss": loss, "title": title, **lists}


def add_runs(row, kind, values, folder, describe):
    """Add scores and names of runs to a row; in a folder write the runs."""
    name, is_check = row["name"], kind == "reality-check"
    for at, value in enumerate(values):
        changed = {"on": "held_out", "test": dict.fromkeys(METRICS, float(value))}
        units = [f"{name}/repeat-{at:02d}/fold-{fold}" for fold in range(2)]
        units, changed = (units, changed) if is_check else ([f"{name}/seed-{at}"], {})
        for unit in units if folder else ():
            write_run(folder / unit, seed=at, score=value, **describe, **changed)
        row["runs"] += units
    add_scores(row, kind, values)
    if is_check:
        add_trials(row)
        if folder:
            write_run(folder / name / "trial-002" / "fold-0", on="held_out", **describe)


def add_scores(row, kind, values):
    parts = {"separated.": 1, "concatenated.": 1.1} if kind == "reality-check" else {"": 1}
    for (part, better), (metric, factor) in product(parts.items(), METRICS.items()):
        scores = [better * factor * value for value in values]
        row["scores"][f"{part}{metric}"] = summarised(scores)
    if kind != "reality-check":
        row["scores"]["epoch"] = summarised([4 + at for at in range(len(values))])
    row["scores"]["seconds"] = summarised([10.0 + at for at in range(len(values))])


def add_trials(row):
    row["best_trial"], row["best_settings"] = 2, {"beta": 50.123456, "class_lr": 0.01}
    row["search_space"] = {"beta": {"low": 10, "high": 200, "log": False}}
    row["search_space"]["class_lr"] = {"low": 1e-6, "high": 1.0, "log": True}
    row["trials"] = [
        {
            "number": number,
            "settings": {"beta": 40.0 + number, "class_lr": 0.01},
            "value": [0.2, 0.0, 0.23, 0.1][number],  # a trial that failed scores 0
            "folds": [0.2, 0.2],
            "failed": "the loss became NaN in fold 2" if number == 1 else None,
            "pruned": "below the median after fold 1" if number == 3 else None,
        }
        for number in range(4)
    ]


def paired(kind, first, second, seeds):
    return {
        "metric": "concatenated.map_at_r" if kind == "reality-check" else "map_at_r",
        "first": first,
        "second": second,
        "difference": -0.0123,
        "low": -0.02,
        "high": -0.004,
        "p_value": 0.0004,
        "corrected": 0.0314,
        "wilcoxon": 0.25,
        "num_pairs": seeds,
    }
