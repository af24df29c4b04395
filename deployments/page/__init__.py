"""The page at ``/``: the files beside this one, as they are, under a policy that lets nothing else run.

There is no build step. Nothing of a person or a document is in these files, so they need no key; what they ask for does.
"""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

PREFIX = "/page/"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Trusted types on top: a line of ours that handed text to the HTML parser would throw.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for each time, and sent again only after an update
}


def is_page(path: str) -> bool:
    """Whether a path is of the page's own files."""
    return path == "/" or path.startswith(PREFIX)


def add_page(app: FastAPI) -> None:
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix in _KINDS:
            path = "/" if file.name == "index.html" else PREFIX + file.name
            app.router.routes.append(Route(path, _served(file), methods=["GET"], include_in_schema=False))


def _served(file: Path) -> Callable[[Request], Awaitable[Response]]:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**_HEADERS, "etag": tag}

    async def serve(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(body, 200, headers, _KINDS[file.suffix])

    return serve
