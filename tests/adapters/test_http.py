"""The HTTP client against servers that misbehave, each a thread that writes bytes to a socket."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection

import pytest

from adapters import http
from adapters.http import HttpClient, check_url, sending_ns
from vocabulary.engine import TokenRequest
from vocabulary.errors import EngineFailed, RequestRefused, UsageError

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
    client = HttpClient("made-up", url, timeout_s=1)
    assert isinstance(client._connection, HTTPSConnection) == url.startswith("https")
    client.close()


@pytest.mark.parametrize("key", ["secret\n", "sec\rret", "s\u00e9cret"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="made-up: the API key holds control or non-ASCII characters") as caught:
        HttpClient("made-up", "http://host", timeout_s=1, api_key=key)
    assert key not in str(caught.value)


def answers(status: int, body: bytes = b"{}") -> Callable[[Server, socket.socket, int], None]:
    return sends(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, EngineFailed) for status in (201, 399, 500, 503)),
        *((status, RequestRefused) for status in (400, 499)),
    ],
)
def test_a_post_that_is_not_answered_with_200(status: int, kind: type[Exception]) -> None:
    said = rf"^made-up: POST /completion (refused with|answered) {status}: two lines$"
    with serving(answers(status, b"two\nlines")) as server:
        client = server.client()
        with pytest.raises(kind, match=said):
            client.post_json("/completion", {})
        with pytest.raises(kind, match=said):
            list(client.stream("/completion", {}))
        with pytest.raises(EngineFailed, match=rf"^made-up: GET /props answered {status}: two lines$"):
            client.get_json("/props")
        assert client.post("/completion", {}) == (status, b"two\nlines") == client.get("/props")


def test_a_status_below_200_is_no_answer() -> None:
    with serving(sends(b"HTTP/1.1 199 X\r\n\r\n")) as server:
        client = server.client()
        for ask in (client.post_json, lambda *asked: list(client.stream(*asked))):
            with pytest.raises(EngineFailed, match="POST /completion answered 199"):
                ask("/completion", {})
        with pytest.raises(EngineFailed, match="GET /props answered 199"):
            client.get_json("/props")


def test_an_excerpt_of_a_long_answer_is_quoted() -> None:
    with serving(answers(500, b"x" * 500 + b"y")) as server, pytest.raises(EngineFailed, match=r": x{500}$"):
        server.client().post_json("/completion", {})


def test_requests_carry_the_path_the_body_and_the_key() -> None:
    with serving(sends(JSON)) as server:
        port = server.listener.getsockname()[1]
        client = HttpClient("made-up", f"http://127.0.0.1:{port}/base/", timeout_s=60, api_key="se/cret")
        assert (client.post("/completion", {}), client.get("/props")) == ((200, b"{}"), (200, b"{}"))
        without = server.client()
        without.get("/props")
    post, get, plain = server.requests
    assert post.startswith(b"POST /base/completion HTTP/1.1\r\n") and post.endswith(b"\r\n\r\n{}")
    assert get.startswith(b"GET /base/props HTTP/1.1\r\n") and get.endswith(b"\r\n\r\n")
    for sent in (post, get):
        assert b"Content-Type: application/json" in sent and b"Authorization: Bearer se/cret" in sent
        assert b"Connection: close" in sent
    assert b"Authorization" not in plain


@pytest.mark.parametrize("spelled", [b'a"b/c', b'a\\"b/c', b'a"b\\/c'])
def test_a_key_that_the_server_repeats_is_not_shown(spelled: bytes) -> None:
    with serving(answers(401, b"no such key <%s>" % spelled)) as server:
        port = server.listener.getsockname()[1]
        client = HttpClient("made-up", f"http://127.0.0.1:{port}", timeout_s=60, api_key='a"b/c')
        with pytest.raises(RequestRefused, match=r"no such key <\[API key\]>$"):
            client.post_json("/completion", {})


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, True), (1002, False)])
def test_a_body_may_be_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch, size: int, fits: bool) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1001)
    with serving(answers(200, b"x" * size)) as server:
        if fits:
            assert server.client().get("/props") == (200, b"x" * size)
        else:
            with pytest.raises(EngineFailed, match="GET /props answered over 1001 bytes"):
                server.client().get("/props")


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, True), (1002, False)])
def test_a_line_may_be_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch, size: int, fits: bool) -> None:
    monkeypatch.setattr(http, "MAX_LINE_BYTES", 1001)
    line = b'data: "' + b"x" * (size - 9) + b'"\n'
    assert len(line) == size
    with serving(sends(EVENTS + line)) as server:
        if fits:
            assert [data for _, data in server.client().stream("/completion", {})] == ["x" * (size - 9)]
        else:
            with pytest.raises(EngineFailed, match="POST /completion sent a line of over 1001 bytes"):
                list(server.client().stream("/completion", {}))


@pytest.mark.parametrize("reply", [JSON, EVENTS + b"{}"])
def test_a_reply_with_its_headers_may_be_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    with serving(sends(reply)) as server:
        monkeypatch.setattr(http, "MAX_REPLY_BYTES", len(reply))
        assert server.client().get("/props") == (200, b"{}")
        monkeypatch.setattr(http, "MAX_REPLY_BYTES", len(reply) - 1)
        with pytest.raises(EngineFailed, match=rf"over {len(reply) - 1} bytes"):
            server.client().get("/props")


def test_of_a_stream_only_data_lines_before_the_end_are_events() -> None:
    lines = b': ping\nevent: x\ndata:{"a": 1}\n\ndata: 2 \r\n\ndata: [DONE]\n\ndata: 3\n\n'
    with serving(sends(EVENTS + lines)) as server:
        before = time.monotonic_ns()
        events = list(server.client().stream("/completion", {}))
    assert [data for _, data in events] == [{"a": 1}, 2]
    assert before <= events[0][0] <= events[1][0] <= time.monotonic_ns()


def test_a_request_is_not_sent_before_its_time() -> None:
    now = time.monotonic_ns()
    assert sending_ns(TokenRequest(request_id="r", ids=(1,), not_before_ns=now + 50_000_000)) >= now + 50_000_000
    for past in (None, now - 10**15, now):
        assert now <= sending_ns(TokenRequest(request_id="r", ids=(1,), not_before_ns=past)) < now + 60 * 10**9


@pytest.mark.parametrize(
    ("url", "sign"), [("http://host/#part", "#"), ("http://host/?", "?"), ("http://u@host/?#", "@")]
)
def test_a_url_holds_no_more_than_a_place(url: str, sign: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"must not hold `{sign}`")):
        check_url("made-up", url)
    check_url("made-up", "http://host:1/path")


def test_a_line_fits_a_body_and_a_body_fits_a_reply() -> None:
    limits = (http.MAX_LINE_BYTES, http.MAX_BODY_BYTES, http.MAX_REPLY_BYTES)
    assert limits == (8 * 1024**2, 64 * 1024**2, 256 * 1024**2)
