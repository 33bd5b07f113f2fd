"""HTTP to an engine: JSON bodies, server-sent events, and timestamps taken at the socket.

The standard library's `http.client` on one kept connection: it adds the least time of its own to a
time to first token (benchmarks/client_floor.py measures it).
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from vocabulary.errors import EngineFailed, RequestRefused, UsageError

MAX_BODY_BYTES = 64 << 20
MAX_LINE_BYTES = 8 << 20


class HttpClient:
    """One kept connection to `base_url`; used by one thread at a time."""

    def __init__(self, engine: str, base_url: str, *, timeout_s: float, api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{engine}: {base_url!r} is not an http(s) URL")
        self.engine = engine
        self._prefix = parts.path.rstrip("/")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; EngineFailed when no answer comes."""
        response = self._exchange("GET", path, None)
        return response.status, self._read(response)

    def get_json(self, path: str) -> Any:
        """Decoded body of a GET that must answer 200."""
        status, body = self.get(path)
        if status != 200:
            raise EngineFailed(f"{self.engine}: GET {path} answered {status}: {_excerpt(body)}")
        return self._decode(body, path)

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Status and body of a POST with a JSON body; EngineFailed when no answer comes."""
        response = self._exchange("POST", path, body)
        return response.status, self._read(response)

    def post_json(self, path: str, body: Any) -> Any:
        """Decoded body of a POST; RequestRefused on 4xx, EngineFailed on any other status but 200."""
        status, data = self.post(path, body)
        self._check(status, data, path)
        return self._decode(data, path)

    def stream(self, path: str, body: Any) -> Iterator[tuple[int, Any]]:
        """Server-sent events of a POST as `(monotonic_ns when read, decoded data)`, up to `[DONE]` or the end."""
        response = self._exchange("POST", path, body)
        if response.status != 200:
            self._check(response.status, self._read(response), path)
        try:
            while line := response.readline(MAX_LINE_BYTES + 1):
                now = time.monotonic_ns()
                if len(line) > MAX_LINE_BYTES:
                    raise EngineFailed(f"{self.engine}: POST {path} sent a line of over {MAX_LINE_BYTES} bytes")
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        break
                    yield now, self._decode(data, path)
            response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineFailed(f"{self.engine}: POST {path} broke off: {error!r}") from None
        finally:
            if not response.isclosed():
                self.close()

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body).encode()
        for fresh in (self._connection.sock is None, True):
            try:
                self._connection.request(method, self._prefix + path, payload, self._headers)
                return self._connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kept connection that the server closed while idle is reopened once; nothing was processed then.
                stale = isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError))
                if fresh or not stale:
                    raise EngineFailed(f"{self.engine}: {method} {path} got no answer: {error!r}") from None
        raise AssertionError("unreachable")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            body = response.read(MAX_BODY_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EngineFailed(f"{self.engine}: reply broke off: {error!r}") from None
        if len(body) > MAX_BODY_BYTES:
            self.close()
            raise EngineFailed(f"{self.engine}: reply of over {MAX_BODY_BYTES} bytes")
        return body

    def _check(self, status: int, body: bytes, path: str) -> None:
        if 400 <= status < 500:
            raise RequestRefused(f"{self.engine}: POST {path} refused with {status}: {_excerpt(body)}")
        if status != 200:
            raise EngineFailed(f"{self.engine}: POST {path} answered {status}: {_excerpt(body)}")

    def _decode(self, body: bytes, path: str) -> Any:
        try:
            return json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise EngineFailed(f"{self.engine}: {path} answered something that is not JSON: {_excerpt(body)}") from None


def _excerpt(body: bytes) -> str:
    return body[:500].decode("utf-8", errors="replace").replace("\n", " ")
