"""A world's one HTTP server, with the routes of Archipelago's; nothing of theirs is in it."""

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

FILES = Path("/filesystem")
tools = MCPServer("gateway")
mounted = AsyncExitStack()


class ReadRequest(BaseModel):
    """What a tool takes, in an envelope."""

    path: str


class WriteRequest(ReadRequest):
    """The same."""

    text: str


@tools.tool()
def files_server_read_file(request: ReadRequest) -> str:
    """Content of a file."""
    return (FILES / request.path).read_text()


@tools.tool()
def files_server_write_file(request: WriteRequest) -> str:
    """Write a file."""
    (FILES / request.path).write_text(request.text)
    return "written"


async def health(_: Request) -> Response:
    """Whether anybody is there."""
    return PlainTextResponse("OK")


async def apps(request: Request) -> Response:
    """Mount the tools at /mcp/, where there is nothing before."""
    servers = list((await request.json())["mcpServers"])
    serving = tools.streamable_http_app(streamable_http_path="/mcp/")
    await mounted.enter_async_context(serving.router.lifespan_context(serving))
    request.app.router.routes.append(Mount("/", serving))
    return JSONResponse({"servers": servers})


async def populate(request: Request) -> Response:
    """Unpack files into a folder of the root."""
    async with request.form() as form:
        archive = form["archive"]
        if not isinstance(archive, UploadFile):
            return PlainTextResponse("archive has to be a file", 422)
        packed = io.BytesIO(await archive.read())
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(Path("/") / request.query_params["subsystem"], filter="data")
        return JSONResponse({"objects_added": len(tar.getmembers())})


async def snapshot(_: Request) -> Response:
    """All files as they are now."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(FILES, "filesystem")
    return Response(packed.getvalue(), media_type="application/gzip")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Until the server ends."""
    async with mounted:
        yield


routes = [
    Route("/health", health),
    Route("/apps", apps, methods=["POST"]),
    Route("/data/populate", populate, methods=["POST"]),
    Route("/data/snapshot", snapshot, methods=["POST"]),
]
uvicorn.run(Starlette(routes=routes, lifespan=lifespan), host="0.0.0.0", port=8000)  # noqa: S104  a pod's
