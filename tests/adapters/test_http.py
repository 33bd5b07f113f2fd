"""The HTTP client against servers that misbehave, each a thread that writes bytes to a socket."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from adapters import http
from adapters.http import HttpClient
from vocabulary.errors import EngineFailed, UsageError

JSON = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
EVENTS = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Calls `behave(connection, n)` in a thread for its n-th connection, from 0, and keeps what requests it reads."""

    def __init__(self, behave: Callable[[Server, socket.socket, int], None]) -> None:
        self._behave = behave
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def read_request(self, connection: socket.socket) -> None:
        """One request; its body comes in the same or the next packet and is only "{}" here."""
        data = b""
        while b"\r\n\r\n" not in data or (data.startswith(b"POST") and not data.endswith(b"{}")):
            if not (more := connection.recv(65536)):
                raise ConnectionError
            data += more
        self.requests.append(data)

    def client(self, timeout_s: float = 60) -> HttpClient:
        return HttpClient("made-up", f"http://127.0.0.1:{self.listener.getsockname()[1]}", timeout_s=timeout_s)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            for number in range(100):
                connection = self.listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            self._behave(self, connection, number)


@contextmanager
def serving(behave: Callable[[Server, socket.socket, int], None]) -> Iterator[Server]:
    server = Server(behave)
    try:
        yield server
    finally:
        server.listener.close()


def sends(first: bytes, then: bytes = b"", pause_s: float = 0) -> Callable[[Server, socket.socket, int], None]:
    """Answer with `first`, then with `then` for ever (or end where it is empty)."""

    def behave(server: Server, connection: socket.socket, _: int) -> None:
        server.read_request(connection)
        connection.sendall(first)
        while then:
            connection.sendall(then)
            time.sleep(pause_s)

    return behave


def test_a_post_that_the_server_read_and_dropped_is_not_sent_again() -> None:
    def behave(server: Server, connection: socket.socket, number: int) -> None:
        server.read_request(connection)
        if number != 1:
            connection.sendall(JSON)
            server.read_request(connection)  # and no answer

    with serving(behave) as server:
        client = server.client()
        assert client.post_json("/completion", {}) == {}
        with pytest.raises(EngineFailed, match="made-up: POST /completion got no answer"):
            client.post_json("/completion", {})
        assert len(server.requests) == 2
        assert client.post_json("/completion", {}) == {}
        client.close()


def test_a_server_that_closes_behind_its_reply_is_met_on_a_new_connection() -> None:
    with serving(sends(JSON)) as server:  # reads one request per connection
        client = server.client()
        assert [client.post_json("/completion", {}) for _ in range(20)] == [{}] * 20
        assert len(server.requests) == 20
        client.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (EVENTS, b'data: {"stop": false}\n\n'),
        (EVENTS, b": ping\n\n"),
        (EVENTS, b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
        (CHUNKED, b"0"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (b"", b"H"),
    ],
)
def test_a_reply_that_drips_ends_at_the_deadline(first: bytes, then: bytes) -> None:
    with serving(sends(first, then, pause_s=0.05)) as server:
        client, begin = server.client(timeout_s=0.5), time.monotonic()
        with pytest.raises(EngineFailed, match=r"made-up: POST /completion .*: not finished within 0\.5 s"):
            for _ in client.stream("/completion", {}):
                pass
        assert time.monotonic() - begin >= 0.5
        client.close()


def test_a_body_that_drips_ends_at_the_deadline() -> None:
    with serving(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", pause_s=0.05)) as server:
        client = server.client(timeout_s=0.5)
        with pytest.raises(EngineFailed, match=r"GET /health broke off: not finished within 0\.5 s"):
            client.get("/health")
        client.close()


def test_each_exchange_has_its_own_deadline() -> None:
    def behave(server: Server, connection: socket.socket, _: int) -> None:
        server.read_request(connection)
        time.sleep(0.4)
        connection.sendall(JSON)

    with serving(behave) as server:
        client = server.client(timeout_s=2)
        assert [client.post_json("/completion", {}) for _ in range(6)] == [{}] * 6
        client.close()


@pytest.mark.parametrize("then", [b'data: {"stop": false}\n\n' * 1000, b"x" * 65536])
def test_a_stream_without_end_is_cut(monkeypatch: pytest.MonkeyPatch, then: bytes) -> None:
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 1 << 20)
    with serving(sends(EVENTS, then)) as server:
        client = server.client()
        with pytest.raises(EngineFailed, match=r"POST /completion broke off: .*over 1048576 bytes"):
            for _ in client.stream("/completion", {}):
                pass
        client.close()


def test_a_stream_is_read_to_its_end() -> None:
    with serving(sends(CHUNKED + b'c\r\ndata: {"a":1\r\n3\r\n}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n')) as server:
        client = server.client()
        assert [data for _, data in client.stream("/completion", {})] == [{"a": 1}]
        client.close()


@pytest.mark.parametrize("body", [b'{"n":' + b"9" * 5000 + b"}", b"[" * 100_000, b"\xff<html>"])
def test_a_body_that_is_no_usable_json(body: bytes) -> None:
    with serving(sends(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)) as server:
        client = server.client()
        with pytest.raises(EngineFailed, match="/props answered something that is not JSON"):
            client.get_json("/props")
        client.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://host:99999",
        "http://host:abc",
        "http://:8000",
        "http://host/a b",
        "http://host/\u00fc",
        "http://ho\nst",
        "http://a..b",
        "ftp://host",
        "host:8000",
        "",
    ],
)
def test_a_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(UsageError, match=r"made-up: .* is not a URL such as"):
        HttpClient("made-up", url, timeout_s=1)


@pytest.mark.parametrize("url", ["http://u:secret@host", "http://u:secret@[::1", "http://h/?key=secret"])
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match=r"must not hold `[@?]`") as caught:
        HttpClient("made-up", url, timeout_s=1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://[::1]:8000", "https://host.example/base/", "HTTP://127.0.0.1"])
def test_a_url_that_can_be_used(url: str) -> None:
    HttpClient("made-up", url, timeout_s=1).close()


@pytest.mark.parametrize("key", ["secret\n", "sec\rret", "s\u00e9cret"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="made-up: the API key holds control or non-ASCII characters") as caught:
        HttpClient("made-up", "http://host", timeout_s=1, api_key=key)
    assert key not in str(caught.value)
