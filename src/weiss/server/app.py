"""The application: its addresses and their answers.

Nothing is computed in the event loop: a few processes decode uploads, and the thread of the batcher
embeds and searches.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Annotated, Any, cast

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from weiss._base.decoder import UploadSettings
from weiss._base.decoding import usable_cores
from weiss._version import __version__
from weiss.catalogue import (
    Catalogue,
    ConditionError,
    DamagedIndexError,
    Hit,
    UnknownItemError,
    search_answer,
)
from weiss.catalogue.filtering import MOST_CONDITIONS
from weiss.server import schemas
from weiss.server.batching import Batcher, Slots
from weiss.server.decoders import UploadDecoders
from weiss.server.limits import LOOPBACK, MAX_K, Limits, UnavailableError
from weiss.server.login import Login
from weiss.server.metrics import CONTENT_TYPE, Metrics
from weiss.server.middleware import Guard
from weiss.server.originals import OTHER, checked_folders, original
from weiss.server.state import Follower, State
from weiss.server.uploads import UPLOAD_BODY, client_of, decode_picture, read_file

SCRIPTS = ("script.js", "dom.js", "search.js", "classes.js", "map.js", "view.js", "viewer.js")
PAGE = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}
"""The files of the page; a request for any other name opens no file."""
MAX_COUNT = 200
log = logging.getLogger(__name__)
RULES = {
    "k": f"an integer from 1 to {MAX_K}",
    "id": "an integer from 0",
    "start": "an integer from 0",
    "count": f"an integer from 1 to {MAX_COUNT}",
    "where": f"at most {MOST_CONDITIONS} conditions",
}
K = Annotated[schemas.Number, Query(ge=1, le=MAX_K, description="How many neighbours.")]
Where = Annotated[
    list[str] | None,
    Query(
        max_length=MOST_CONDITIONS,
        description="Only items with it: class=kiwi, or price<5. Several must hold together.",
    ),
]
Id = Annotated[schemas.Number, Path(ge=0, lt=2**63, description="The number of an item.")]


def make_app(
    catalogue: Catalogue,
    limits: Limits | None = None,
    *,
    hosts: Collection[str] | None = LOOPBACK,
    allowed: Collection[str] = (),
    token: str | None = None,
    folder: str | FilePath | None = None,
    reopen: Callable[[], Catalogue] | None = None,
    originals: Sequence[str | FilePath] = (),
) -> FastAPI:
    """Return an application that serves a catalogue.

    Args:
        catalogue: the index to search.
        limits: what to accept; `Limits()` if None.
        hosts: names that a Host header may have, without ports; None for any, or for those of
            this machine if there are `allowed` ones.
        allowed: names of a proxy in front of this server: a Host header may have them too, and
            uploads may come from its pages.
        token: a secret that requests must have, at least 16 characters; None for no login.
        folder: the folder of the index, if the application is to follow its changes.
        reopen: opens the index of that folder again; given together with ``folder``.
        originals: folders with the photos of the index, which are served too.

    Raises:
        ValueError: the token is too short, or a folder of photos does not exist.
    """
    limits = limits or Limits()
    login = None if token is None else Login(token)
    photo_folders = checked_folders(originals)
    current = Follower(catalogue, folder, reopen)
    metrics = Metrics(
        {
            "weiss_uploads": ("Pictures that are sent or decoded.", lambda: uploads.taken),
            "weiss_waiting": ("Searches under way.", lambda: batcher.searches.taken),
            "weiss_items": ("Items in the index.", lambda: len(current.state.catalogue)),
        }
    )
    batcher = Batcher(limits, metrics.batch)
    uploads = Slots(limits.max_uploads, "uploads")
    settings = UploadSettings(
        channels=catalogue.channels,
        short_side=catalogue.short_side,
        max_pixels=limits.max_pixels,
        max_side=limits.max_side,
        seconds=limits.seconds,
        memory=limits.decoder_memory,
        scaled=catalogue.scaled_decoding,
    )
    decoders = UploadDecoders(min(4, usable_cores()), settings, max(1, limits.max_uploads // 2))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        decoders.warm()
        following = asyncio.create_task(current.follow())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await asyncio.to_thread(decoders.close)
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title=f"Weiss: {catalogue.name}",
        description="Find the items of a catalogue that are most similar to a picture.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={
            "4XX": {"model": schemas.ErrorAnswer, "description": "Refused; detail says why"}
        },
    )
    app.state.metrics = metrics
    app.add_middleware(Guard, metrics=metrics, hosts=hosts, allowed=allowed, login=login)
    _handle_errors(app)

    async def answered(
        state: State, query: dict[str, Any], future: "Future[list[Hit]]"
    ) -> schemas.SearchAnswer:
        try:
            hits = await asyncio.wait_for(asyncio.wrap_future(future), limits.seconds)
        except TimeoutError:
            why = f"an answer must come within {limits.seconds:g} seconds"
            raise UnavailableError(why) from None
        answer = search_answer(hits, state.catalogue.threshold)
        answer["results"] = list(map(state.with_thumbnail, answer["results"]))
        return schemas.SearchAnswer.model_validate({"query": query, **answer})

    async def refuse_conditions(state: State, where: list[str] | None) -> None:
        """Refuse conditions before they are in a batch with other searches.

        Among many items that takes long: only with a slot of the client.
        """
        if where:
            await asyncio.to_thread(state.catalogue.matching, where)

    @app.post("/search", summary="Search with a picture", openapi_extra=UPLOAD_BODY)
    async def search(request: Request, k: K = 10, where: Where = None) -> schemas.SearchAnswer:
        """Return the items that are most similar to an uploaded picture."""
        client = client_of(request)
        with uploads.take(client):
            await refuse_conditions(current.state, where)
            content = await read_file(request, limits)
            with batcher.announced.take():
                pixels, (width, height) = await decode_picture(content, decoders, limits, client)
            del content  # it may be large
        with batcher.searches.take(client):
            state, query = current.state, {"width": width, "height": height}
            future = batcher.picture(state.catalogue, pixels, k, where or ())
            return await answered(state, query, future)

    @app.get("/items/{id}", summary="An item")
    async def item(id: Id) -> schemas.ItemAnswer:
        """Return name and classes of an item."""
        state = current.state
        found = state.catalogue.item(id).as_dict()
        return schemas.ItemAnswer.model_validate(state.with_thumbnail(found))

    @app.get(
        "/items/{id}/thumbnail",
        summary="The thumbnail of an item",
        response_class=Response,
        responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}},
    )
    def thumbnail(id: Id, v: Annotated[str, Query(include_in_schema=False)] = "") -> Response:
        """Return a PNG or JPEG file."""
        state = current.state
        content, kind = state.catalogue.thumbnail(id), state.catalogue.thumbnail_type(id)
        cached = "private, max-age=86400, immutable" if v == state.version else "no-store"
        return Response(content, media_type=kind, headers={"Cache-Control": cached})

    @app.get("/items/{id}/neighbours", summary="Search with an item")
    async def neighbours(
        request: Request, id: Id, k: K = 10, where: Where = None
    ) -> schemas.SearchAnswer:
        """Return the items that are most similar to an item, without itself."""
        state = current.state
        query = {"item": state.with_thumbnail(state.catalogue.item(id).as_dict())}
        with batcher.searches.take(client_of(request)):
            await refuse_conditions(state, where)
            return await answered(state, query, batcher.item(state.catalogue, id, k, where or ()))

    @app.get("/classes", summary="All classes", responses={200: {"model": schemas.ClassesAnswer}})
    async def classes() -> Response:
        """Return every class, the number of its items, and one thumbnail."""
        return Response(current.state.classes, media_type="application/json")

    @app.get("/unknown", summary="Items without a class that fit none")
    def unknown() -> schemas.UnknownAnswer:
        """Return groups of items that are alike; none in an index whose items have classes."""
        return current.state.unknown()

    @app.get("/classes/items", summary="The items of a class")
    def class_items(
        name: Annotated[str | None, Query(description="The class; all items without it.")] = None,
        start: Annotated[schemas.Number, Query(ge=0, lt=2**63, description="Skip this many.")] = 0,
        count: Annotated[
            schemas.Number, Query(ge=1, le=MAX_COUNT, description="How many at most.")
        ] = 24,
    ) -> schemas.PageAnswer:
        """Return some items of a class, or of the whole catalogue, by their ids."""
        state = current.state
        if name is not None and name not in state.sizes:
            raise HTTPException(
                404, "name must be a class of this catalogue; it is not. See /classes."
            )
        total = len(state.catalogue) if name is None else state.sizes[name]
        some = state.catalogue.items_of(name, start, count)
        items = [state.with_thumbnail(item.as_dict()) for item in some]
        answer = {"name": name, "total": total, "start": start, "items": items}
        return schemas.PageAnswer.model_validate(answer)

    @app.get(
        "/map", summary="All items in two dimensions", responses={200: {"model": schemas.MapAnswer}}
    )
    async def map_(request: Request) -> Response:
        """Return a point for every item, and the mean fields of the model's classes."""
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(current.state.map, media_type="application/json")
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(current.state.packed_map, media_type="application/json", headers=headers)

    @app.get("/about", summary="The catalogue and its model")
    def about() -> schemas.AboutAnswer:
        """Return facts about the catalogue and its model, and what the server accepts."""
        state = current.state
        shown = state.catalogue
        return schemas.AboutAnswer(
            name=shown.name,
            version=state.version,
            items=len(shown),
            classes=len(state.sizes),
            columns=list(shown.columns),
            embedding_size=shown.embedding_size,
            threshold=shown.facts["threshold"],
            outdated=shown.is_outdated(),
            originals=bool(photo_folders),
            limits=schemas.LimitsAnswer(
                bytes=limits.max_bytes,
                pixels=limits.max_pixels,
                side=limits.max_side,
                seconds=limits.seconds,
                k=MAX_K,
            ),
            facts=shown.facts,
        )

    @app.get("/healthz", summary="Whether searches are answered")
    async def health() -> schemas.HealthAnswer:
        """Answer 200 while searches are answered."""
        if not batcher.is_alive:
            raise UnavailableError("searches must be answered; their thread has ended")
        if (oldest := batcher.oldest) > limits.seconds:
            why = f"searches must be answered; one has waited for {oldest:.0f} seconds"
            raise UnavailableError(why)
        return schemas.HealthAnswer(status="ok", items=len(current.state.catalogue))

    @app.get("/metrics", summary="Counts for Prometheus", response_class=Response)
    async def counts() -> Response:
        """Return the text format of Prometheus."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    if photo_folders:

        @app.get(
            "/items/{id}/original",
            summary="The photo of an item",
            response_class=Response,
            responses={200: {"content": {"image/*": {}}}},
        )
        def photo(id: Id) -> Response:
            """Return the file that was indexed, if its content is still the same."""
            found = original(current.state.catalogue, id, photo_folders, limits.max_bytes)
            if found is None:
                raise HTTPException(
                    404,
                    "the photo of an item must lie below a folder of --originals, unchanged, with "
                    f"at most {limits.max_bytes / 1e6:g} MB; this one does not. See its thumbnail.",
                )
            content, kind = found
            headers = {"Cache-Control": "no-store"}
            if kind == OTHER:
                headers["Content-Disposition"] = "attachment"
            return Response(content, media_type=kind, headers=headers)

    if login is not None:

        @app.post("/login", status_code=204, summary="Get a cookie for the secret")
        async def log_in(request: Request) -> Response:
            """Answer a request that has the secret with a cookie that stands for it."""
            origin = request.headers.get("origin", "")
            return login.answer(is_encrypted=origin.startswith("https:"))

    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    """Add the page; its files are read once, so that no request opens a file."""
    folder = files("weiss.server") / "page"
    content = {name: (folder / name).read_bytes() for name in (*PAGE, "index.html")}
    tags = {name: f'"{hashlib.sha256(given).hexdigest()[:16]}"' for name, given in content.items()}

    def answer(request: Request, name: str, kind: str) -> Response:
        headers = {"ETag": tags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(content[name], media_type=kind, headers=headers)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return answer(request, "index.html", "text/html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(request: Request, name: str) -> Response:
        if name not in PAGE:
            raise AnyHTTPException(404)
        return answer(request, name, PAGE[name])


def _handle_errors(app: FastAPI) -> None:
    """Answer every error as JSON with a ``detail``: what must hold, what was given, what to do."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = cast(dict[str, Any], error.errors()[0])
        name, given = str(first["loc"][-1]), repr(first.get("input"))
        rule = RULES.get(name, "valid")
        shown = given if len(given) <= 40 else f"{given[:40]}..."
        return JSONResponse({"detail": f"{name} must be {rule}; got {shown}. Change it."}, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        detail = error.detail
        if not isinstance(error, HTTPException):
            detail = f"address and method must be one of those in /openapi.json; {detail}."
        return JSONResponse({"detail": detail}, error.status_code, error.headers)

    @app.exception_handler(UnknownItemError)
    async def no_item(request: Request, error: UnknownItemError) -> JSONResponse:
        # People read it too, who have followed a link to an item that is gone.
        detail = "id must be that of an item of this catalogue; this item was removed, or never "
        detail += "there. Choose another one; /search and /classes/items answer with ids."
        return JSONResponse({"detail": detail}, 404)

    @app.exception_handler(ConditionError)
    async def condition(request: Request, error: ConditionError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    logged: set[str] = set()

    @app.exception_handler(DamagedIndexError)
    async def is_damaged(request: Request, error: DamagedIndexError) -> JSONResponse:
        if str(error) not in logged:  # once: every search would repeat it
            logged.add(str(error))
            log.error("%s", error)
        return JSONResponse({"detail": str(error)}, 503)

    @app.exception_handler(UnavailableError)
    async def unavailable(request: Request, error: UnavailableError) -> JSONResponse:
        detail = f"{error}. Try again in a second."
        return JSONResponse({"detail": detail}, 503, {"Retry-After": "1"})
