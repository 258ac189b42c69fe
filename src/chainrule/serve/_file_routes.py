"""Files between callers and the folders of the components, where the operator allows that.

    POST /files?name=mesh.vtu    the body becomes a file in `uploads` below `input_path`; the answer has its
                                 path, which a caller gives as `InputPath`
    GET  /files?path=report.pdf  a file below `output_path`, which a result names as `OutputPath`

The type of an upload is `application/octet-stream`. Browsers ask a server before they send that from a
page of another site, so such a page cannot write files here. Names are cut to letters, digits, dots and
dashes; a random number in front makes each a file of its own: nothing is overwritten. All uploads together
stay within what the operator allows. A file is there when it is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from chainrule._errors import ChainruleError, DecodeError, InputError, LimitError, StorageError
from chainrule._files import open_private, whole_file
from chainrule.runtime import ComponentConfig
from chainrule.serve._endpoint import BodyReader, Disconnected, declared_length
from chainrule.serve._options import ServeOptions
from chainrule.serve._problems import problem_reply

_FOLDER = "uploads"
_TYPE = "application/octet-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_MOST_LETTERS = 80


class Exchange:
    """The files of a server.

    Args:
        config: has the folders.
        options: how much may be uploaded, and how slowly.
    """

    def __init__(self, config: ComponentConfig, options: ServeOptions) -> None:
        self._grants = config.grants
        self._max_bytes = options.max_upload_bytes
        self._timeout_s = options.read_timeout_s
        self._kept = 0  # bytes of files that are whole
        self._under_way = 0  # bytes of files that are being written

    def routes(self) -> list[Route]:
        """The routes, which answer mistakes as problems."""
        return [
            Route("/files", _answered(self._upload), methods=["POST"]),
            Route("/files", _answered(self._download), methods=["GET"]),
        ]

    async def _upload(self, request: Request) -> Response:
        if request.headers.get("content-type") != _TYPE:
            raise DecodeError(
                f"Send the file as it is, with Content-Type: {_TYPE}.",
                code="unsupported_media_type",
            )
        name = f"{token_hex(4)}-{safe_name(request.query_params.get('name', ''))}"
        folder = self._grants.input_path(_FOLDER)
        declared_length(dict(request.scope["headers"]), self._max_bytes)
        # Measured for each upload: an operator may have removed files. What other uploads have written so far
        # has names that begin with a dot, and is in `_under_way`.
        self._kept = await asyncio.to_thread(_size_of, folder)
        taken = 0

        def grow(more: int) -> None:
            nonlocal taken
            taken += more
            self._under_way += more
            if self._kept + self._under_way > self._max_bytes:
                raise _full()

        reader = BodyReader(request.receive, self._timeout_s, self._max_bytes, grow)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (
                whole_file(folder / name) as temporary,
                open(temporary, "xb", opener=open_private) as file,
            ):
                while reader.has_more:
                    await asyncio.to_thread(file.write, await reader.next())
            self._kept += taken
        except OSError as error:
            raise StorageError(f"The file cannot be kept: {error.strerror}.") from error
        finally:
            self._under_way -= taken
        return JSONResponse({"path": f"{_FOLDER}/{name}"}, status_code=201, headers=_HEADERS)

    async def _download(self, request: Request) -> Response:
        path = self._grants.output_file(request.query_params.get("path", ""))
        return FileResponse(path, media_type=_TYPE, filename=path.name, headers=_HEADERS)


def safe_name(name: str) -> str:
    """A name without folders and without anything that a shell or a file system takes for more than a letter.

    Raises:
        InputError: nothing is left of it (`bad_query`).

    Example:
        >>> safe_name("../my mesh (1).vtu")
        'my_mesh_1_.vtu'
    """
    last = re.split(r"[/\\]", name)[-1]
    kept = re.sub(r"[^A-Za-z0-9._-]+", "_", last).lstrip("._-")[-_MOST_LETTERS:]
    if not kept:
        raise InputError(
            "Give the file a name with letters or digits: ?name=mesh.vtu.", code="bad_query"
        )
    return kept


def _size_of(folder: Path) -> int:
    """Of the files that are whole."""
    with contextlib.suppress(FileNotFoundError):
        return sum(f.stat().st_size for f in folder.iterdir() if not f.name.startswith("."))
    return 0


def _full() -> LimitError:
    return LimitError(
        "The uploads are larger than this server keeps. Its operator can remove old ones, or raise the limit "
        "with --max-upload-bytes.",
        code="body_too_large",
    )


def _answered(
    route: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await route(request)
        except Disconnected:
            return Response(status_code=499)
        except ChainruleError as error:
            reply = problem_reply(error)
            return Response(b"".join(reply.pieces), reply.status, media_type=reply.content_type)

    return answer
