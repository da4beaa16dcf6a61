"""A catalogue in the browser: a page and a JSON interface.

`serve` runs a server, as ``weiss serve`` does; `make_app` returns the application for another ASGI
server. fastapi is imported when the application is made, uvicorn when it is served.
"""

from typing import TYPE_CHECKING, Any

from weiss.server.launch import serve
from weiss.server.limits import Limits

if TYPE_CHECKING:
    from weiss.server.app import make_app

__all__ = ["Limits", "make_app", "serve"]


def __getattr__(name: str) -> Any:
    if name != "make_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weiss.server.app import make_app

    return make_app
