"""Headless Chromium through its driver, spoken to with the standard library (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 30
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def missing() -> str:
    """Why no browser can be used here; empty where one can."""
    if not chromium():
        return "no Chromium on PATH (Debian: apt-get install chromium chromium-driver)"
    return "" if shutil.which("chromedriver") else "no chromedriver on PATH (Debian: apt-get install chromium-driver)"


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One window. Close it, or use it as a context manager."""

    def __init__(self, width: int = 1440, height: int = 1000) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="hitparity-chromium-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            [str(shutil.which("chromedriver")), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._base = f"http://127.0.0.1:{port}"
        self._await_driver()
        arguments = [*FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        options = {"args": arguments, "binary": chromium()}
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._base += f"/session/{session['sessionId']}"

    def open(self, path: Path, fragment: str = "") -> None:
        self._call("POST", "/url", {"url": path.as_uri() + fragment})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def messages(self) -> list[str]:
        """What the console said since the last call: errors, refused loads."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("GET", "/screenshot"))

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(START_S)
            self._profile.cleanup()

    def _await_driver(self) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except urllib.error.URLError:
                if time.monotonic() > until or self._driver.poll() is not None:
                    raise
            time.sleep(0.1)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)["value"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
