"""The status page: plain HTML, CSS and JavaScript files from this package."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "page"
_FILES = {
    "/": ("status.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
}
_HEADERS = {
    # Nothing is loaded from other hosts, and the page cannot be framed.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src"
    " 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """Returns the routes of the status page's files."""
    return [
        Route(path, _sends(_FOLDER / name, kind))
        for path, (name, kind) in _FILES.items()
    ]


def _sends(file: Path, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = file.read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return send
