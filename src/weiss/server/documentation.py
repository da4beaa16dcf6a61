"""The page /docs: the OpenAPI description for people, with no script and nothing from elsewhere."""

from html import escape
from typing import Any

UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
"""What POST /search takes; its function reads the request itself, so fastapi cannot know."""


def docs_page(schema: dict[str, Any]) -> str:
    """Return an HTML page for an OpenAPI description.

    Args:
        schema: as /openapi.json has it.
    """
    routes = "".join(
        _operation(path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    )
    models = "".join(_model(name, model) for name, model in schema["components"]["schemas"].items())
    info = schema["info"]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Interface of {escape(info['title'])}</title>\n"
        '<link rel="icon" href="/page/icon.svg">\n'
        '<link rel="stylesheet" href="/page/style.css">\n</head>\n<body>\n'
        f'<main class="docs"><p><a href="/">Back to the catalogue</a></p>\n'
        f"<h1>{escape(info['title'])}</h1>\n<p>{escape(info['description'])} Version "
        f"{escape(info['version'])}. The same for programs: "
        '<a href="/openapi.json">openapi.json</a>.</p>\n'
        f"<h2>Addresses</h2>\n{routes}<h2>Answers</h2>\n{models}</main>\n</body>\n</html>\n"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    about = operation.get("description", operation.get("summary", ""))
    rows = [
        (one["name"], _kind(one["schema"]), one["schema"].get("description", ""))
        for one in operation.get("parameters", [])
    ]
    rows += [
        (name, "a file", "The picture, as multipart/form-data.")
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for name in content["schema"].get("properties", {})
    ]
    answer = operation["responses"].get("200", {}).get("content", {})
    said = " or ".join(_kind(one.get("schema", {})) or kind for kind, one in answer.items())
    return (
        f'<section class="operation"><h3><code><b>{method.upper()}</b> {escape(path)}</code></h3>\n'
        f"<p>{escape(about)} Answers {said or 'text'}.</p>\n{_table(rows)}{_curl(path, method)}"
        "</section>\n"
    )


def _curl(path: str, method: str) -> str:
    options = "-F file=@photo.jpg " if method == "post" else ""
    return f"<pre>curl {options}ADDRESS{escape(path.replace('{id}', '0'))}</pre>\n"


def _model(name: str, model: dict[str, Any]) -> str:
    rows = [
        (each, _kind(one), one.get("description", ""))
        for each, one in model.get("properties", {}).items()
    ]
    about = escape(model.get("description", ""))
    return (
        f'<section id="{escape(name)}"><h3>{escape(name)}</h3><p>{about}</p>{_table(rows)}'
        "</section>\n"
    )


def _table(rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    body = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{kind}</td>'
        f"<td>{escape(about)}</td></tr>"
        for name, kind, about in rows
    )
    # A table wider than a phone scrolls by itself, by keyboard as well.
    region = '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
    return f"{region}<table>{body}</table></div>\n"


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in words, as markup: another model is a link to it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    words = escape(str(schema.get("type", "")))
    ends = [schema.get("minimum"), schema.get("maximum")]
    if ends[1] is not None:
        words += f" from {ends[0]} to {ends[1]}"
    if "default" in schema:
        words += f", {escape(str(schema['default']))} if left out"
    return words
