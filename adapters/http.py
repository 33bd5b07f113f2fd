"""HTTP to an engine: JSON bodies, server-sent events, and timestamps taken at the socket.

The standard library's `http.client`: it adds the least time of its own to a time to first token
(benchmarks/client_floor.py measures it).
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from vocabulary.engine import TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_REPLY_BYTES = 256 << 20
"""A whole reply with its headers, streamed or not."""
MAX_BODY_BYTES = 64 << 20
MAX_LINE_BYTES = 8 << 20
HIDDEN = b"[API key]"
"""What a server's words show where they repeat the key."""


class HttpClient:
    """Exchanges with the server at `base_url`; used by one thread at a time.

    `timeout_s` bounds a whole exchange, from connecting to the last byte of the reply. No request is ever sent
    twice, since a server that read the first copy would answer the second from its cache. So no connection is kept
    either: llama-server b11549 closes some right behind a streamed reply, and whether it read a request that
    crosses its closing cannot be known.
    """

    def __init__(self, engine: str, base_url: str, *, timeout_s: float, api_key: str | None = None) -> None:
        """Connects to nothing yet; UsageError for a URL or a key that cannot be used."""
        parts = _split(engine, base_url)
        self.engine, self._timeout_s = engine, timeout_s
        self._prefix = parts.path.rstrip("/")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port)
        self._deadline = 0.0
        self._connection.response_class = _response_class(self._remaining_s)
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        self._key = (api_key or "").encode()
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise UsageError(f"{engine}: the API key holds control or non-ASCII characters; check where it is set")
            self._headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; EngineFailed when no answer comes."""
        response = self._exchange("GET", path, None)
        return response.status, self._read(response, f"GET {path}")

    def get_json(self, path: str) -> Any:
        """Decoded body of a GET that must answer 200."""
        status, body = self.get(path)
        if status != 200:
            raise EngineFailed(f"{self.engine}: GET {path} answered {status}: {_excerpt(body)}")
        return self._decode(body, path)

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Status and body of a POST with a JSON body; EngineFailed when no answer comes."""
        response = self._exchange("POST", path, body)
        return response.status, self._read(response, f"POST {path}")

    def post_json(self, path: str, body: Any) -> Any:
        """Decoded body of a POST; RequestRefused on 4xx, EngineFailed on any other status but 200."""
        status, data = self.post(path, body)
        self._check(status, data, path)
        return self._decode(data, path)

    def stream(self, path: str, body: Any) -> Iterator[tuple[int, Any]]:
        """Server-sent events of a POST as `(monotonic_ns when read, decoded data)`, up to `[DONE]` or the end."""
        response = self._exchange("POST", path, body)
        if response.status != 200:
            self._check(response.status, self._read(response, f"POST {path}"), path)
        try:
            while line := response.readline(MAX_LINE_BYTES + 1):
                now = time.monotonic_ns()
                if len(line) > MAX_LINE_BYTES:
                    raise EngineFailed(f"{self.engine}: POST {path} sent a line of over {MAX_LINE_BYTES} bytes")
                if line.startswith(b"data:"):
                    data = self._without_key(line[5:].strip())
                    if data == b"[DONE]":
                        break
                    yield now, self._decode(data, path)
            response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"POST {path}", "broke off", error) from None
        finally:
            self._leave(response)

    def close(self) -> None:
        """Drop the connection of an exchange that has not ended."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body).encode()
        self._deadline = time.monotonic() + self._timeout_s
        self.close()
        self._connection.timeout = self._timeout_s
        try:
            self._connection.request(method, self._prefix + path, payload, self._headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._failure(f"{method} {path}", "got no answer", error) from None

    def _remaining_s(self) -> float:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining

    def _read(self, response: http.client.HTTPResponse, request: str) -> bytes:
        try:
            body = response.read(MAX_BODY_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(request, "broke off", error) from None
        finally:
            self._leave(response)
        if len(body) > MAX_BODY_BYTES:
            raise EngineFailed(f"{self.engine}: {request} answered over {MAX_BODY_BYTES} bytes")
        return self._without_key(body)

    def _leave(self, response: http.client.HTTPResponse) -> None:
        response.close()
        self.close()

    def _failure(self, request: str, what: str, error: Exception) -> EngineFailed:
        if isinstance(error, TimeoutError) and error.errno is None:  # ours, not the network's ETIMEDOUT
            return EngineFailed(f"{self.engine}: {request} {what}: not finished within {self._timeout_s:g} s")
        return EngineFailed(f"{self.engine}: {request} {what}: {self._without_key(repr(error).encode()).decode()}")

    def _without_key(self, said: bytes) -> bytes:
        """A server may repeat what it was sent, above all in an error; plainly or as JSON text spells it."""
        if self._key:
            for spelled in (self._key, json.dumps(self._key.decode())[1:-1].encode(), self._key.replace(b"/", b"\\/")):
                said = said.replace(spelled, HIDDEN)
        return said

    def _check(self, status: int, body: bytes, path: str) -> None:
        if 400 <= status < 500:
            raise RequestRefused(f"{self.engine}: POST {path} refused with {status}: {_excerpt(body)}")
        if status != 200:
            raise EngineFailed(f"{self.engine}: POST {path} answered {status}: {_excerpt(body)}")

    def _decode(self, body: bytes, path: str) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):  # ValueError: also an integer of too many digits
            raise EngineFailed(f"{self.engine}: {path} answered something that is not JSON: {_excerpt(body)}") from None


def sending_ns(request: TokenRequest) -> int:
    """Wait until a request may be sent; the time then, to be read right before it is."""
    if request.not_before_ns is not None:
        time.sleep(max(0, request.not_before_ns - time.monotonic_ns()) / 1e9)
    return time.monotonic_ns()


def check_url(engine: str, base_url: str) -> None:
    """Raises UsageError for a URL that cannot be used or may hold a secret: it would be written into records."""
    _split(engine, base_url)


def _split(engine: str, base_url: str) -> SplitResult:
    if found := [f"`{sign}`" for sign in "@?#" if sign in base_url]:
        raise UsageError(
            f"{engine}: a server's URL must not hold {found[0]}, since it is written into records; "
            f"name the variable that holds the key in `api_key_env`"
        )
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        usable = usable and base_url.isascii() and base_url.isprintable() and " " not in base_url
        (parts.hostname or "").encode("idna")
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{engine}: {base_url!r} is not a URL such as http://127.0.0.1:8000")
    return parts


def _response_class(remaining_s: Callable[[], float]) -> type[http.client.HTTPResponse]:
    """A reply all of whose reads from the socket, headers and chunk sizes too, keep the deadline and the size limit."""

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **keywords: Any) -> None:
            super().__init__(sock, *arguments, **keywords)
            self.fp.close()
            self.fp = io.BufferedReader(_BoundedReads(sock, remaining_s))

    return Response


class _BoundedReads(io.RawIOBase):
    def __init__(self, sock: socket.socket, remaining_s: Callable[[], float]) -> None:
        self._sock, self._file, self._remaining_s = sock, sock.makefile("rb", buffering=0), remaining_s
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._sock.settimeout(self._remaining_s())
        count = self._file.readinto(buffer)
        self._count += count or 0
        if self._count > MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"over {MAX_REPLY_BYTES} bytes")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _excerpt(body: bytes) -> str:
    return body[:500].decode("utf-8", errors="replace").replace("\n", " ")
