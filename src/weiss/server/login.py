"""A shared secret: programs send it as a header, and the page gets a cookie for it."""

import hashlib
import hmac
import re

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

TOKEN = re.compile(r"[!-~]{16,}")
"""At least 16 characters that a header can have."""


class Login:
    """Who may see the catalogue: whoever knows a secret.

    Args:
        token: the secret.

    Raises:
        ValueError: it is too short, or cannot be sent in a header.
    """

    def __init__(self, token: str) -> None:
        if not TOKEN.fullmatch(token):
            raise ValueError(
                "token must have at least 16 letters, digits and signs of ASCII, and no spaces; "
                f"this one has {len(token)} characters. Make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'."
            )
        self._token = token.encode()
        # The browser does not store the secret itself. Two servers of one host, with different
        # secrets, do not overwrite each other's cookie.
        made = hmac.new(self._token, b"weiss serve", hashlib.sha256).hexdigest()
        self._name, self._value = f"weiss_{made[:8]}", made[8:]

    def accepts(self, headers: Headers) -> bool:
        """Return whether a request has the secret or the cookie."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(given, self._token):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(self._name, "")
        return _is_same(cookie, self._value.encode())

    def answer(self, *, is_encrypted: bool) -> Response:
        """Return the answer that gives the cookie to a browser."""
        answer = Response(status_code=204)
        answer.set_cookie(
            self._name, self._value, httponly=True, samesite="strict", secure=is_encrypted
        )
        return answer


def _is_same(given: str, right: bytes) -> bool:
    """Compare in a time that says nothing about the right text."""
    return hmac.compare_digest(given.encode(), right)
