"""The shape of the code: imports point down, heavy libraries stay in their packages, and lazily.

The order of `LAYERS` holds three rules by itself: the server and the catalogue stand below the
trainer and cannot import it; reports stand below whoever makes runs and can only read folders;
`weiss.kernels` and `weiss.losses` share their vocabulary through `weiss.theory`, below both.
ARCHITECTURE.md shows this order, and its table names files that exist.
"""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import weiss

ROOT = Path(__file__).parents[2]
SOURCE = Path(weiss.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
TABLE = PAGE[PAGE.index("## Where to make a change") : PAGE.index("## How data flow")]
FILES = sorted(set(re.findall(r"`([\w./-]+(?:/[\w.-]+|\.py|\.toml))`", TABLE)))
# From the top to the bottom; the order of the map in ARCHITECTURE.md.
LAYERS = [
    "cli",
    "comparing",
    "training",
    "server",
    "catalogue",
    "reporting",
    "runs",
    "figures",
    "data",
    "backbones",
    "evaluation",
    "losses",
    "kernels",
    "theory",
    "magnet",
    "_base",
]
LOOSE = {"__init__", "__main__", "_version"}
# Which packages may import a heavy library, and never at import time.
LAZY = {
    "pytorch_metric_learning": {"losses"},
    "matplotlib": {"figures"},
    "sklearn": {"evaluation", "training", "catalogue"},
    "scipy": {"data", "evaluation", "magnet"},
    "fontTools": {"data"},
    "pyarrow": {"catalogue", "data"},
    "datasets": {"data"},
    "timm": {"backbones"},
    "peft": {"backbones"},
    "safetensors": {"_base"},
    "pillow_heif": {"_base"},
    "accelerate": {"training"},
    "optuna": {"comparing"},
    "onnx": {"catalogue"},
    "onnxscript": {"catalogue"},
    "onnxruntime": {"catalogue"},
    "faiss": {"catalogue"},
    "pymilvus": {"catalogue"},
    "umap": {"catalogue"},
    "ray": {"_base", "catalogue"},
    "fsspec": {"data"},
}
# Files that are for one library and import it at import time; nothing imports them.
FOR_ONE_LIBRARY = {"training.estimator": "sklearn"}
# Which packages may import these, at import time too where that is what a file is for.
EAGER = {
    "PIL": {"_base", "data", "catalogue", "figures"},
    "typer": {"cli"},
    "rich": {"cli", "_base"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "python_multipart": {"server"},
    "prometheus_client": {"server"},
    "pydantic": {"catalogue", "runs", "server"},
    "pydantic_core": {"runs"},
    "torchvision": set(),
    "triton": {"kernels"},  # in files that are imported when a kernel is first used; tested below
}


class Source:
    """One file: where it stands, what it imports of Weiss, and which libraries."""

    def __init__(self, path):
        self.parts = path.relative_to(SOURCE).with_suffix("").parts
        self.name = ".".join(self.parts)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.own, self.libraries = set(), set()
        first = {id(node) for node in self.tree.body}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative imports hide where they point"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                head, *rest = name.split(".")
                if head == "weiss":
                    self.own.add(_module(rest))
                else:
                    self.libraries.add((head, id(node) in first))


def _module(names):
    """Cut a dotted name after its module: losses.shards.shard_classes is losses.shards."""
    found = []
    for name in names:
        here = SOURCE.joinpath(*found, name)
        if here.is_dir() or here.with_suffix(".py").exists():
            found.append(name)
    if SOURCE.joinpath(*found).is_dir():
        found.append("__init__")
    return ".".join(found)


@pytest.fixture(scope="module")
def sources():
    return [Source(path) for path in sorted(SOURCE.rglob("*.py"))]


def test_every_file_has_a_place_on_the_map(sources):
    homes = {source.parts[0] for source in sources if len(source.parts) > 1}
    assert homes == set(LAYERS)
    assert {source.name for source in sources if len(source.parts) == 1} == LOOSE


def test_the_map_lists_every_package_in_this_order_with_a_sentence():
    tree = re.search(r"^src/weiss/\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    assert re.findall(r"^  (\w+)/ +\w", tree, re.MULTILINE) == LAYERS


def test_the_table_of_changes_names_files_that_exist():
    assert len(FILES) > 25
    for name in FILES:
        assert (ROOT / name).exists() or (SOURCE / name).exists(), name


def test_imports_point_down(sources):
    wrong = []
    for source in sources:
        here = source.parts[0]
        for there in (name.split(".")[0] for name in source.own):
            if here in LAYERS and there in LAYERS and LAYERS.index(there) < LAYERS.index(here):
                wrong.append(f"{source.name} imports {there}, which stands above it")
    assert not wrong, "\n".join(wrong)


def test_inside_a_package_no_file_imports_itself_in_a_circle(sources):
    below = {
        source.name: {
            name
            for name in source.own
            if name.split(".")[0] == source.parts[0] and name != source.name
        }
        for source in sources
    }
    list(TopologicalSorter(below).static_order())  # raises CycleError, which names the circle


def test_heavy_libraries_stay_in_their_packages_and_are_imported_lazily(sources):
    wrong = []
    for source in sources:
        for library, at_import_time in source.libraries:
            homes = LAZY.get(library, EAGER.get(library))
            if homes is not None and source.parts[0] not in homes:
                wrong.append(f"{source.name} imports {library}, which belongs in {sorted(homes)}")
            if library in LAZY and at_import_time and FOR_ONE_LIBRARY.get(source.name) != library:
                wrong.append(f"{source.name} imports {library} at import time")
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_one_that_is_for_a_heavy_library(sources):
    # But the package's own, for type checkers.
    others = [source for source in sources if source.name != "__init__"]
    assert {source.name for source in others} >= FOR_ONE_LIBRARY.keys()
    assert not [source.name for source in others if source.own & FOR_ONE_LIBRARY.keys()]


def test_a_long_file_says_why_it_is_one_piece(sources):
    for source in sources:
        if source.text.count("\n") > 500:
            assert "one piece" in (ast.get_docstring(source.tree) or ""), source.name


BEFORE = "import sys, torch; before = set(sys.modules); "
LOSS = "from weiss import *; loss = make_loss('mf_cwms', 3, 2); "
LOSS += "loss(torch.randn(4, 2), torch.arange(4) % 3).backward()"
HEAVY = {"pytorch_metric_learning", "matplotlib", "scipy", "sklearn", "pandas"}


@pytest.mark.parametrize(
    ("code", "too_much"),
    [
        pytest.param(f"{BEFORE}from weiss import *", HEAVY | {"weiss.training"}, id="weiss"),
        pytest.param(f"{BEFORE}{LOSS}", {"triton", "torch._dynamo"}, id="a loss on a CPU"),
        pytest.param(
            f"{BEFORE}import weiss.catalogue; weiss.runs.recipe_from('cub')",
            HEAVY | {"sympy", "weiss.reporting", "weiss.training"},
            id="a search",
        ),
        pytest.param(
            "import sys; before = set(); import weiss._base.decoder",
            {"torch", "weiss.data"},
            id="decoding images",
        ),
    ],
)
def test_an_import_costs_little(code, too_much):
    code += "; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "weiss" in done.stdout.split()
    assert not set(done.stdout.split()) & too_much


def test_the_public_names_exist_and_have_docstrings():
    assert sorted(weiss.__all__) == sorted(set(weiss.__all__))
    assert set(weiss.__all__) < set(dir(weiss))
    for name in (*weiss.__all__, "EmbeddingEstimator"):
        value = getattr(weiss, name)
        if callable(value):
            assert value.__doc__, name
