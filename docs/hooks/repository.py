"""What pages link to outside of docs gets a page of its own, so that every link works in the site.

A Markdown file becomes a page, a folder the page of its README or a list of its files, source code
a page with its text, anything else a copy. They stand below ``repository/``, as they lie here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?=[)#])")
HIDDEN = {"hooks", "drawings"}  # in docs, but no part of the site: see exclude_docs
CODE = {".py": "python", ".toml": "toml", ".yml": "yaml"}
ALWAYS = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/cub-resnet50"]
ALWAYS += ["results/cars-resnet50", "results/glyphs"]


def targets(source: Path, text: str) -> Iterator[Path]:
    """Yield what the links of a file lead to, where it is a file or a folder of the repository."""
    for found in LINK.finditer(text):
        if "://" not in found["target"]:
            path = (source.parent / found["target"]).resolve()
            if path.exists() and path.is_relative_to(ROOT):
                yield path


def inside(path: Path) -> bool:
    """Return whether a file is one that the site takes from docs by itself."""
    return path.is_relative_to(DOCS) and not HIDDEN & {*path.relative_to(DOCS).parts}


def is_code(path: Path) -> bool:
    """Return whether a file is shown as source code; what lies among results is copied."""
    return path.suffix in CODE and "results" not in path.parts


def uri(path: Path) -> str:
    """Return where a file or a folder of the repository stands in the site's sources."""
    below = path.relative_to(DOCS if inside(path) else ROOT).as_posix()
    place = below if inside(path) else f"repository/{below}"
    if path.is_dir():
        return f"{place}/{'README' if (path / 'README.md').exists() else 'index'}.md"
    return f"{place}.md" if is_code(path) and not inside(path) else place


def text_of(path: Path) -> str | None:
    """Return the Markdown of a page for a file or a folder; None for what is copied as it is."""
    if path.is_dir() and (path / "README.md").exists():
        path /= "README.md"
    if path.is_dir():
        files = sorted(each.relative_to(path).as_posix() for each in path.rglob("*.*"))
        lines = [f"- [{name}]({name})" for name in files if (path / name).is_file()]
        return "\n".join([f"# {path.relative_to(ROOT)}", "", *lines, ""])
    if is_code(path):
        fence = "`" * 8
        code = f"{fence}{CODE[path.suffix]}\n{path.read_text()}\n{fence}\n"
        return f"# {path.relative_to(ROOT)}\n\n{code}"
    return path.read_text() if path.suffix == ".md" else None


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation."""
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    names = ["decisions/README.md", *(f"decisions/{path.name}" for path in records)]
    for section in config.nav or []:
        for entry in section.get("Project", []):
            if "Decisions" in entry:
                entry["Decisions"] = names
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to, and what that links to."""
    waiting = [ROOT / name for name in ALWAYS]
    for file in files.documentation_pages():
        waiting += targets(DOCS / file.src_uri, file.content_string)
    while waiting:
        path = waiting.pop()
        if inside(path) or files.get_file_from_path(uri(path)):
            continue
        text = text_of(path)
        if text is None:
            files.append(File.generated(config, uri(path), abs_src_path=str(path)))
            continue
        files.append(File.generated(config, uri(path), content=text))
        if not is_code(path):
            here = path / "README.md" if path.is_dir() else path
            waiting += targets(here, text)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to where their targets stand in the site."""
    if page.file.src_uri == "decisions/README.md":
        records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
        titles = {path.name: path.read_text().split("\n")[0].lstrip("# ") for path in records}
        lines = [f"- [{title}]({name})" for name, title in titles.items()]
        markdown = "\n".join([markdown, *lines, ""])
    outside = page.file.src_uri.removeprefix("repository/")
    source = DOCS / outside if outside == page.file.src_uri else ROOT / outside
    if source.suffix == ".md" and source.with_suffix("").suffix in CODE:
        return markdown

    def lead(found: re.Match[str]) -> str:
        path = (source.parent / found["target"]).resolve()
        if "://" in found["target"] or not (path.exists() and path.is_relative_to(ROOT)):
            return found["target"]
        return relpath(uri(path), dirname(page.file.src_uri) or ".")

    return LINK.sub(lead, markdown)
