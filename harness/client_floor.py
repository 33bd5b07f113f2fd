"""The client floor: time to first token of `adapters.http.HttpClient` against a server that computes nothing.

The server runs in a process of its own and answers any POST with one server-sent event, so what is
measured is the client, loopback and a minimal server. A warm TTFT near this number says nothing about an engine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from adapters.http import HttpClient

WARM_UP = 50
SERVER = """
import http.server, sys
class Null(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the acknowledgement of the headers
    def log_message(self, *a): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'data: {"token": 1}\\n\\ndata: [DONE]\\n\\n'
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Null)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def client_floor(prompt_lens: Sequence[int], *, sends: int = 400) -> dict[int, list[float]]:
    """Milliseconds from send to first event, `sends` times for each prompt length in tokens."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        client = HttpClient("null", f"http://127.0.0.1:{server.stdout.readline().strip()}", timeout_s=30)
        try:
            return {length: _times(client, length, sends) for length in prompt_lens}
        finally:
            client.close()
            server.terminate()


def body_of(length: int) -> dict[str, object]:
    """The request that stands for a prompt of so many tokens."""
    return {"prompt": list(range(1000, 1000 + length)), "stream": True}


def _times(client: HttpClient, length: int, sends: int) -> list[float]:
    body, times = body_of(length), []
    for number in range(sends + WARM_UP):
        sent = time.monotonic_ns()
        (first,) = client.stream("/completion", body)
        if number >= WARM_UP:
            times.append((first[0] - sent) / 1e6)
    return times
