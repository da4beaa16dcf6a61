"""The application: which address gives what.

Nothing here computes. Pictures are decoded in a few processes, embedded and searched for by the
batcher's thread, and the event loop only hands things on.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, cast

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from weiss._base.decoder import UploadSettings
from weiss._base.decoding import usable_cores
from weiss._version import __version__
from weiss.catalogue import Catalogue, Hit, Item, UnknownItemError
from weiss.server import schemas
from weiss.server.batching import Batcher, BusyError, ClosedError, Places
from weiss.server.decoders import Workers
from weiss.server.documentation import UPLOAD_BODY, docs_page
from weiss.server.limits import LOOPBACK, MAX_K, Limits
from weiss.server.metrics import CONTENT_TYPE, Metrics
from weiss.server.middleware import Guard
from weiss.server.overview import Overview
from weiss.server.uploads import come_back, decode_picture, read_file

PAGE = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "dom.js": "text/javascript",
    "search.js": "text/javascript",
    "classes.js": "text/javascript",
    "map.js": "text/javascript",
    "view.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The files of the page that can be asked for by name; no other name reaches a disk."""
MAX_COUNT = 200
RULES = {
    "k": f"an integer from 1 to {MAX_K}",
    "id": "an integer from 0",
    "start": "an integer from 0",
    "count": f"an integer from 1 to {MAX_COUNT}",
}
K = Annotated[schemas.Number, Query(ge=1, le=MAX_K, description="How many neighbours.")]
Id = Annotated[schemas.Number, Path(ge=0, lt=2**63, description="The number of an item.")]


def make_app(
    catalogue: Catalogue,
    limits: Limits | None = None,
    *,
    hosts: Collection[str] | None = LOOPBACK,
    allowed: Collection[str] = (),
) -> FastAPI:
    """Return an application that serves a catalogue.

    Args:
        catalogue: what to search in; nobody else may embed with it meanwhile.
        limits: what to accept; `Limits()` if None.
        hosts: names that a Host header may give, without ports; None for any.
        allowed: names of a proxy in front of this server: a Host header may give them too, and
            uploads may come from pages there.
    """
    limits = limits or Limits()
    # Pictures of another index may stand at the same address tomorrow; this tells them apart.
    version = secrets.token_hex(4)

    def thumbnail_of(id: int) -> str:
        return f"/items/{id}/thumbnail?v={version}"

    def item_answer(item: Item) -> schemas.ItemAnswer:
        return schemas.ItemAnswer(
            id=item.id,
            name=item.name,
            classes=list(item.class_names),
            thumbnail=thumbnail_of(item.id),
        )

    overview = Overview(catalogue, thumbnail_of)
    short_side = int(catalogue.facts["model"]["preprocessing"]["short_side"])
    threshold = (
        schemas.ThresholdAnswer(**asdict(catalogue.threshold)) if catalogue.threshold else None
    )
    metrics = Metrics(
        {
            "weiss_uploads": ("Pictures that are sent or decoded.", lambda: uploads.taken),
            "weiss_waiting": ("Searches under way.", lambda: batcher.waiting),
            "weiss_items": ("Items in the index.", lambda: len(catalogue)),
        }
    )
    batcher = Batcher(catalogue, limits, metrics.batch)
    uploads = Places(limits.max_uploads, "uploads")
    order = UploadSettings(
        channels=catalogue.channels,
        # As the network's preprocessing begins: pictures that wait for each other are small.
        short_side=short_side,
        max_pixels=limits.max_pixels,
        max_side=limits.max_side,
        seconds=limits.seconds,
        memory=limits.decoder_memory,
    )
    workers = Workers(min(4, usable_cores()), order)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        workers.warm()
        yield
        await asyncio.to_thread(workers.close)
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title=f"Weiss: {catalogue.name}",
        description="Find the items of a catalogue that are nearest to a picture.",
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
    app.add_middleware(Guard, metrics=metrics, hosts=hosts, allowed=allowed)
    _handle_errors(app)

    def hits_answer(query: schemas.QueryAnswer, hits: list[Hit]) -> schemas.SearchAnswer:
        return schemas.SearchAnswer(
            query=query,
            threshold=threshold,
            match=hits[0].is_match if hits else None if threshold is None else False,
            results=[
                schemas.HitAnswer(
                    **item_answer(hit.item).model_dump(),
                    similarity=hit.similarity,
                    distance=hit.distance,
                    match=hit.is_match,
                )
                for hit in hits
            ],
        )

    async def found(answer: "Future[list[Hit]]") -> list[Hit]:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), limits.seconds)
        except TimeoutError:
            raise come_back(f"an answer must come within {limits.seconds:g} seconds") from None

    @contextmanager
    def known() -> Iterator[None]:
        """Answer 404 where the catalogue knows no such item."""
        try:
            yield
        except UnknownItemError:
            raise HTTPException(
                404,
                "id must be that of an item of this catalogue; there is none such. "
                "Ids stand in the answers of /search and /classes/items.",
            ) from None

    @app.post("/search", summary="Search with a picture", openapi_extra=UPLOAD_BODY)
    async def search(request: Request, k: K = 10) -> schemas.SearchAnswer:
        """Return the items nearest to an uploaded picture."""
        with uploads.take():
            content = await read_file(request, limits)
            with batcher.coming():
                pixels, (width, height) = await decode_picture(content, workers, limits)
            del content  # it may be large, and others wait
        with batcher.place():
            hits = await found(batcher.picture(pixels, k))
        return hits_answer(schemas.QueryAnswer(width=width, height=height), hits)

    @app.get("/items/{id}", summary="An item")
    async def item(id: Id) -> schemas.ItemAnswer:
        """Return what is known of an item."""
        with known():
            return item_answer(catalogue.item(id))

    @app.get(
        "/items/{id}/thumbnail",
        summary="The small picture of an item",
        response_class=Response,
        responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}},
    )
    def thumbnail(id: Id, v: Annotated[str, Query(include_in_schema=False)] = "") -> Response:
        """Return a PNG or JPEG file."""
        with known():
            content, kind = catalogue.thumbnail(id), catalogue.thumbnail_type(id)
        lasting = "private, max-age=86400, immutable" if v == version else "no-store"
        return Response(content, media_type=kind, headers={"Cache-Control": lasting})

    @app.get("/items/{id}/neighbours", summary="Search with an item")
    async def neighbours(id: Id, k: K = 10) -> schemas.SearchAnswer:
        """Return the items nearest to an item, without itself."""
        with known():
            query, vector = catalogue.item(id), catalogue.vector(id)
        with batcher.place():
            hits = await found(batcher.vector(vector, k, leave_out=id))
        return hits_answer(schemas.QueryAnswer(item=item_answer(query)), hits)

    @app.get("/classes", summary="All classes")
    def classes() -> schemas.ClassesAnswer:
        """Return every class, how many items it has, and one of its pictures."""
        return overview.classes()

    @app.get("/classes/items", summary="The items of a class")
    def class_items(
        name: Annotated[str | None, Query(description="The class; all items without it.")] = None,
        start: Annotated[
            schemas.Number, Query(ge=0, lt=2**63, description="Pass over so many.")
        ] = 0,
        count: Annotated[
            schemas.Number, Query(ge=1, le=MAX_COUNT, description="How many at most.")
        ] = 24,
    ) -> schemas.PageAnswer:
        """Return some items of a class, or of the whole catalogue, by their ids."""
        if name is not None and name not in overview.counts:
            raise HTTPException(
                404, "name must be a class of this catalogue; there is none such. See /classes."
            )
        total = len(catalogue) if name is None else overview.counts[name]
        items = [item_answer(item) for item in catalogue.items_of(name, start, count)]
        return schemas.PageAnswer(name=name, total=total, start=start, items=items)

    @app.get(
        "/map", summary="All items in two dimensions", responses={200: {"model": schemas.MapAnswer}}
    )
    def map_(request: Request) -> Response:
        """Return a point for every item, and the mean fields of the model's classes."""
        plain, packed = overview.map()
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(plain, media_type="application/json")
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(packed, media_type="application/json", headers=headers)

    @app.get("/about", summary="The catalogue and its model")
    def about() -> schemas.AboutAnswer:
        """Return what is known of the catalogue, and what the server accepts."""
        return schemas.AboutAnswer(
            name=catalogue.name,
            items=len(catalogue),
            classes=len(overview.counts),
            embedding_size=catalogue.embedding_size,
            threshold=threshold,
            outdated=catalogue.is_outdated(),
            limits=schemas.LimitsAnswer(
                bytes=limits.max_bytes,
                pixels=limits.max_pixels,
                side=limits.max_side,
                seconds=limits.seconds,
                k=MAX_K,
            ),
            facts=catalogue.facts,
        )

    @app.get("/healthz", summary="Whether the server is well")
    async def health() -> schemas.HealthAnswer:
        """Answer 200 while searches are answered."""
        if not batcher.is_well:
            raise come_back("searches must be answered; their thread has ended")
        if (oldest := batcher.oldest) > limits.seconds:
            raise come_back(f"searches must be answered; one has waited for {oldest:.0f} seconds")
        return schemas.HealthAnswer(status="ok", items=len(catalogue))

    @app.get("/metrics", summary="Counts for Prometheus", response_class=Response)
    async def counts() -> Response:
        """Return Prometheus' text format."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    """Add what a person looks at; read once, so that no request opens a file."""
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

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))


def _handle_errors(app: FastAPI) -> None:
    """Answer every error as JSON with a detail that says what to do."""

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
        if isinstance(error, HTTPException) is False:
            detail = f"the address and its method must be one of those in /docs; {detail}."
        return JSONResponse({"detail": detail}, error.status_code, error.headers)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        refusal = come_back(f"a search needs a free place; {error}")
        return JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)

    @app.exception_handler(ClosedError)
    async def closed(request: Request, error: ClosedError) -> JSONResponse:
        refusal = come_back(f"searches need a running server; {error}")
        return JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)
