"""Stand-alone lookup worker of SGLang, JSON lines over stdin and stdout; protocol: adapters/worker.py.

    <- {"hello": 1, "facts": {}}
    -> {"op": "configure", "options": {"groups": ["full"], "page_size": 16}}
    <- {"ok": true, "facts": {...}}

This process imports SGLang once and then only passes lines on. Each configuration is a fork of it that builds the
scheduler: SGLang keeps its configuration in the process and kills what it runs in when it fails.

Runs inside SGLang's own Python, so it imports nothing of ours but what lies beside it.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any, Protocol

HELLO = 1
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Out(Protocol):
    """Where lines go."""

    def write(self, data: bytes, /) -> int:
        """Bytes written."""
        ...

    def flush(self) -> None:
        """Send them."""
        ...


class Child:
    """A fork that serves one configuration."""

    def __init__(self, options: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            sys.stdin.close()
            os._exit(_serve(options, theirs))
        theirs.close()
        self.lines = ours.makefile("rwb")

    def exchange(self, line: bytes) -> bytes:
        """One line there, one back; says so when the child is gone."""
        try:
            self.lines.write(line)
            self.lines.flush()
            answer = self.lines.readline()
        except OSError:
            answer = b""
        return answer or _line({"ok": False, "failed": f"the scheduler's process {self._ended()}"})

    def ready(self) -> dict[str, Any]:
        """What the child says when its scheduler stands."""
        line = self.lines.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"ok": False, "failed": self._ended()}
        return answer

    def end(self) -> None:
        """Kill it; there is nothing to release."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return

    def _ended(self) -> str:
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return "is gone"
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def main() -> None:
    """Serve until stdin ends or `close`."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever SGLang prints goes to the log
    _import_sglang()
    _write(out, {"hello": HELLO, "facts": {}})
    child: Child | None = None
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message["op"] == "close":
            break
        if message["op"] == "configure":
            if child is not None:
                child.end()
            child = Child(message["options"])
            _write(out, child.ready())
        elif child is None:
            _write(out, {"ok": False, "failed": "no configuration yet"})
        else:
            out.write(child.exchange(line))
            out.flush()
    if child is not None:
        child.end()


def _import_sglang() -> None:
    """Everything a scheduler imports, so that a fork has it already."""
    import hitparity_sglang_serving  # type: ignore[import-not-found]  # noqa: F401
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.get_supported_archs()
    gc.collect()
    gc.freeze()


def _serve(options: dict[str, Any], channel: socket.socket) -> int:
    """The child's whole life; returns its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    lines = channel.makefile("rwb")
    from hitparity_sglang_serving import Refused, Serving

    try:
        serving = Serving(options)
    except Refused as error:
        _write(lines, {"ok": False, "refused": str(error)})
        return 0
    except Exception as error:  # noqa: BLE001  (whatever SGLang thinks of the options is the answer)
        traceback.print_exc()
        _write(lines, {"ok": False, "refused": f"SGLang refuses the configuration: {error}"})
        return 0
    _write(lines, {"ok": True, "facts": serving.facts()})
    try:
        for line in lines:
            message = json.loads(line)
            try:
                if message["op"] == "reset":
                    answer: dict[str, Any] = {"ok": True, "reset": serving.reset()}
                else:
                    answer = {"ok": True, "replies": serving.send(message["requests"])}
            except Refused as error:
                answer = {"ok": False, "refused": str(error)}
            _write(lines, answer)
    except Exception:  # noqa: BLE001  (the scheduler is lost, whatever it was; the harness is told why)
        traceback.print_exc()
        _write(lines, {"ok": False, "failed": traceback.format_exc().strip().splitlines()[-1]})
        return 1
    return 0


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _write(out: Out, message: dict[str, Any]) -> None:
    out.write(_line(message))
    out.flush()


if __name__ == "__main__":
    main()
