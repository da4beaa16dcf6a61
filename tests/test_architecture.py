"""The shape of the code: imports point down, heavy libraries stay in their layer, and lazily."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import weiss

SOURCE = Path(weiss.__file__).parent
# From the top to the bottom; the order of the map in ARCHITECTURE.md. A package is one entry.
LAYERS = [
    "__main__",
    "cli",
    "cli_catalogue",
    "cli_comparisons",
    "cli_magnet",
    "printing",
    "__init__",
    "protocols",
    "tuning",
    "web",
    "catalogue",
    "export",
    "model_card",
    "networks",
    "preprocessing",
    "training",
    "config",
    "report",
    "runs",
    "checkpoints",
    "evaluation",
    "data",
    "plots",
    "backbones",
    "self_consistency",
    "shards",
    "losses",
    "optim",
    "touched_rows",
    "kernels",
    "membership",
    "tensor_files",
    "parallel",
    "provenance",
    "neighbours",
    "embeddings",
    "relevance",
    "interactions",
    "metrics",
    "summaries",
    "statistics",
    "distances",
    "magnet",
    "decoding",
    "decoder",
    "images",
    "draws",
    "downloads",
    "archives",
    "files",
    "progress",
    "_check",
    "_version",
]
# Inside a package the same rule holds between its files.
INSIDE = {
    "losses": [
        "__init__",
        "by_name",
        "baselines",
        "binomial",
        "multi_similarity",
        "contrastive",
        "modules",
        "fluctuations",
        "derivation",
    ],
    "kernels": [
        "__init__",
        "dispatch",
        "replay",
        "choice",
        "screened",
        "near",
        "fused",
        "streaming",
        "constraint",
        "near_programs",
        "half_programs",
        "pair_programs",
        "cosine_programs",
        "programs",
        "function",
        "geometry",
        "pairs",
        "slopes",
        "tiles",
        "problem",
        "touched_rows",
    ],
    "web": [
        "__init__",
        "server",
        "app",
        "documentation",
        "guarding",
        "overview",
        "uploads",
        "workers",
        "batching",
        "answers",
        "metrics",
        "limits",
    ],
    "catalogue": [
        "__init__",
        "gallery_page",
        "building",
        "changes",
        "searching",
        "derived",
        "index_card",
        "model_copy",
        "embedding",
        "collection",
        "segments",
        "folder",
        "tidying",
        "calibration",
        "mapping",
        "stores",
        "milvus_store",
        "faiss_store",
        "recall",
        "store_files",
        "vectors",
        "thumbnails",
        "items",
    ],
    "magnet": ["__init__", "transition", "simulation", "exact", "mean_field", "single_spin"],
    "training": [
        "__init__",
        "again",
        "untrained",
        "seeds",
        "loop",
        "preparation",
        "outcome",
        "alternation",
        "resuming",
        "experiment",
        "evaluator",
        "stepping",
        "graphs",
        "guards",
    ],
    "protocols": [
        "__init__",
        "kinds",
        "workers",
        "study_folder",
        "studies",
        "reality_check",
        "run_table",
        "breakdown",
        "costs",
        "contenders",
        "plan",
        "units",
        "scores",
        "ledger",
        "liveness",
    ],
    "config": ["__init__", "files", "recipe", "sections", "kinds", "toml_text"],
    "report": [
        "__init__",
        "build",
        "order",
        "sections",
        "markdown",
        "pictures",
        "tables",
        "captions",
        "published",
        "reading",
        "looking",
        "page",
        "gallery",
        "style",
    ],
    "plots": [
        "__init__",
        "samples",
        "averages",
        "runs",
        "boxes",
        "heat_maps",
        "searches",
        "magnet",
        "attributes",
        "spreads",
        "breakdowns",
        "dependences",
        "drawing",
    ],
    "data": [
        "__init__",
        "by_name",
        "check",
        "sheet",
        "prepare",
        "official_sets",
        "cub",
        "cars",
        "sop",
        "inshop",
        "official",
        "glyphs",
        "own",
        "assembly",
        "splits",
        "pipeline",
        "keeping",
        "gathering",
        "samplers",
        "store",
        "places",
        "resample",
        "crops",
        "table",
        "sources",
    ],
    "backbones": [
        "__init__",
        "by_name",
        "embedder",
        "pooling",
        "bn_inception",
        "resnet",
        "small",
        "timm_networks",
        "layers",
        "trunk",
        "weights",
    ],
}
# Files of one kind that must not know each other, though the list has to order them.
SIBLINGS = [
    {"binomial", "multi_similarity", "contrastive", "baselines"},
    {"cub", "cars", "sop", "inshop", "glyphs", "own"},
    {"bn_inception", "resnet", "small", "timm_networks"},
    {"reality_check", "run_table"},
    {"breakdown", "costs"},
    {"faiss_store", "milvus_store"},
    {"simulation", "exact"},
]
# Which file, or which folder, may import a heavy library, and never at import time.
HEAVY = {
    "pytorch_metric_learning": "losses/baselines.py",
    "matplotlib": "plots/",
    "sklearn": "evaluation.py",
    "scipy": "data/cars.py",
    "fontTools": "data/glyphs.py",
    "pyarrow": "data/own.py",
    "datasets": "data/own.py",
    "timm": "backbones/timm_networks.py",
    "safetensors": "tensor_files.py",
    "accelerate": "training/preparation.py",
    "optuna": "tuning.py",
    "onnx": "export.py",
    "onnxscript": "export.py",
    "onnxruntime": "networks.py",
    "faiss": "catalogue/faiss_store.py",
    "pymilvus": "catalogue/milvus_store.py",
    "umap": "catalogue/mapping.py",
}
# These may be imported by a few files, and at import time where that is what the file is for.
ONLY = {
    "PIL": {"images.py", "data/glyphs.py", "catalogue/thumbnails.py"},
    "typer": {"cli.py", "cli_catalogue.py", "cli_comparisons.py", "cli_magnet.py", "printing.py"},
    "fastapi": {"web/app.py", "web/uploads.py"},
    "starlette": {"web/app.py", "web/uploads.py", "web/guarding.py"},
    "uvicorn": {"web/server.py"},
    "python_multipart": {"web/uploads.py"},
    "sqlalchemy": {"protocols/ledger.py"},
    "pydantic": {
        *(f"config/{name}.py" for name in ("recipe", "sections", "kinds")),
        "web/answers.py",
    },
    "pydantic_core": {"config/kinds.py"},
    "rich": {"cli.py", "printing.py", "progress.py"},
    "torchvision": set(),
    # Files that are themselves imported when a kernel is first used: a test below holds that.
    "triton": {
        f"kernels/{name}.py"
        for name in (
            "programs",
            "cosine_programs",
            "half_programs",
            "near_programs",
            "pair_programs",
            "touched_rows",
        )
    },
}
FILES = sorted(SOURCE.rglob("*.py"))


def parts(path):
    return path.relative_to(SOURCE).with_suffix("").parts


def imported_modules(path):
    """Every `weiss` module this file imports, as parts below the package, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "weiss":
                yield _module_parts(name.split(".")[1:])


def _module_parts(names):
    """Cut a dotted name after its module: weiss.optim.parameter_groups is the module optim."""
    found = []
    for name in names:
        here = SOURCE.joinpath(*found, name)
        if here.is_dir() or here.with_suffix(".py").exists():
            found.append(name)
    return tuple(found) or ("__init__",)


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_imports_point_down(path):
    here = parts(path)
    assert here[0] in LAYERS, f"{path.name} has no place in the map: add it to LAYERS"
    for there in imported_modules(path):
        if there[0] != here[0]:
            assert LAYERS.index(there[0]) > LAYERS.index(here[0]), f"{here} imports {there}"
            continue
        order = INSIDE[here[0]]
        inner, outer = (*there, "__init__")[1], (*here, "__init__")[1]
        assert order.index(inner) > order.index(outer), f"{here} imports {there}"
        for siblings in SIBLINGS:
            assert not {inner, outer} <= siblings, f"{here} imports its sibling {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_heavy_libraries_are_imported_in_one_file_and_lazily(path):
    tree = ast.parse(path.read_text())
    at_import_time = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            libraries = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            libraries = {(node.module or "").split(".")[0]}
        else:
            continue
        for library in libraries & set(HEAVY):
            home = HEAVY[library]
            name = path.relative_to(SOURCE).as_posix()
            is_home = name.startswith(home) if home.endswith("/") else name == home
            assert is_home, f"{library} belongs in {home}"
            assert id(node) not in at_import_time, f"{path.name} imports {library} at import time"


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_a_library_for_one_job_stays_with_it(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for library in {name.split(".")[0] for name in names} & set(ONLY):
            assert path.relative_to(SOURCE).as_posix() in ONLY[library], f"{path} imports {library}"


def test_importing_weiss_costs_torch_and_little_more():
    code = "import sys, torch; before = set(sys.modules); from weiss import *; print(*sorted({"
    code += "m.split('.')[0] for m in set(sys.modules) - before}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(loaded) & {"pytorch_metric_learning", "matplotlib", "scipy", "sklearn", "pandas"}


def test_a_loss_on_a_cpu_costs_no_compiler():
    code = "import sys, torch, weiss; from weiss import *; loss = weiss.make_loss('mf_cwms', 3, 2)"
    code += "; loss(torch.randn(4, 2), torch.arange(4) % 3).backward()"
    code += "; print({'triton', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_public_names_exist_and_have_docstrings():
    assert sorted(weiss.__all__) == sorted(set(weiss.__all__))
    for name in weiss.__all__:
        value = getattr(weiss, name)
        if callable(value):
            assert value.__doc__, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_files_stay_small_or_say_why(path):
    lines = path.read_text().count("\n")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert lines <= 400 or "one piece" in docstring
