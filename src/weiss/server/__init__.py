"""A catalogue in the browser: a page, a JSON interface, and the server behind both.

`serve` is what ``weiss serve`` calls; `make_app` gives the application to whoever has a server of
their own. fastapi is imported when the application is made, uvicorn when it is served.
"""

from typing import TYPE_CHECKING, Any

from weiss.server.limits import Limits
from weiss.server.serve import serve

if TYPE_CHECKING:
    from weiss.server.app import make_app

__all__ = ["Limits", "make_app", "serve"]


def __getattr__(name: str) -> Any:
    if name != "make_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weiss.server.app import make_app

    return make_app
