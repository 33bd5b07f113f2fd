"""An engine process in its own process group: started, watched while it comes up, stopped as a group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from adapters.base import EngineSpec
from vocabulary.errors import EngineFailed, EngineUnavailable, UsageError

TAIL_BYTES = 3000
KILL_WAIT_S = 20.0
"""How long the kernel may take to end a process that was killed."""
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
GUARD = """
read -r _ && exit
kill -s TERM -- "-$0" || exit
rounds=0
while [ $rounds -lt 50 ] && kill -s 0 -- "-$0"; do sleep 0.1; rounds=$((rounds + 1)); done
kill -s KILL -- "-$0"
"""
"""Waits for a line, or for the end of a harness that could not write it (SIGKILL): then it ends the engine's group.

The kernel's own signal at a parent's death reaches one process only, and an engine may ignore it.
"""


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_for(spec: EngineSpec) -> int:
    """The port the experiment names, or a free one.

    Raises EngineUnavailable when something listens there already: its answers must not pass for our server's.
    """
    if spec.port is None:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", spec.port))
        except OSError as error:
            raise EngineUnavailable(
                f"{spec.engine}: port {spec.port} cannot be used ({error.strerror}); choose another or leave `port` out"
            ) from None
    return spec.port


def log_tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The end of a log as text; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit))
            return file.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


class EngineProcess:
    """A child in its own session whose output goes to a log file.

    `stdin`/`stdout` are pipes only when `pipes` is true (worker mode); stderr always goes to the log.
    """

    def __init__(
        self,
        engine: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        pipes: bool = False,
        stop_timeout_s: float = 20.0,
    ) -> None:
        self.engine, self.log, self._stop_timeout_s = engine, log, stop_timeout_s
        try:
            self._log_file = log.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"{engine}: its log {log} cannot be written: {error.strerror}") from None
        try:
            self.child: subprocess.Popen[bytes] = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else self._log_file,
                stderr=self._log_file,
                env=dict(os.environ) | dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (the harness starts engines from its only thread)
            )
        except OSError as error:
            self._log_file.close()
            raise EngineUnavailable(f"{engine}: cannot run {command[0]}: {error}") from None
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, str(self.child.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            raise

    @property
    def stdin(self) -> IO[bytes]:
        """Pipe to the child; only with `pipes`."""
        assert self.child.stdin is not None
        return self.child.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Pipe from the child; only with `pipes`."""
        assert self.child.stdout is not None
        return self.child.stdout

    def exit_text(self, *, patience_s: float = 0.0) -> str | None:
        """None while the child runs, else how it ended.

        A broken connection is seen a moment before the exit status: `patience_s` waits for the latter.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout=patience_s)
        code = self.child.poll()
        if code is None:
            return None
        return f"was killed by signal {_signal_name(-code)}" if code < 0 else f"exited with status {code}"

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll `ready` until it is true; EngineUnavailable when the child ends or the time runs out first."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if (ended := self.exit_text()) is not None:
                raise EngineUnavailable(f"{self.engine}: {ended} while starting. {self.log_hint()}")
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"{self.engine}: not ready after {timeout_s:.0f} s. {self.log_hint()}")
            time.sleep(0.1)

    def listens(self, port: int) -> bool:
        """Whether it is this engine that listens on a loopback port, and not a program that was faster.

        True where that cannot be seen, on other systems than Linux.
        """
        sockets = {f"socket:[{inode}]" for inode in _listening(port)}
        if not sockets:
            return sys.platform != "linux"
        return any(
            _link(link) in sockets for pid in _members(self.child.pid) for link in _entries(Path(f"/proc/{pid}/fd"))
        )

    def log_hint(self) -> str:
        """Where the log is and how it ends."""
        return f"Log: {self.log}\n{log_tail(self.log)}"

    def failure(self, error: EngineFailed) -> EngineFailed:
        """The same failure of an exchange with how the child ended, if it did, and its log."""
        ended = self.exit_text(patience_s=1)
        return EngineFailed(f"{str(error).rstrip('.')}{f'; the server {ended}' if ended else ''}. {self.log_hint()}")

    def stop(self) -> None:
        """SIGTERM to the group, SIGKILL after a grace period; leaves no member behind.

        Raises nothing of its own; an interrupt that arrives meanwhile cuts the grace period short and goes on.
        A second call does nothing.
        """
        if self._log_file.closed:
            return
        try:
            self._ask_to_end()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=KILL_WAIT_S)
            self._log_file.close()
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._guard.communicate(b"\n", timeout=KILL_WAIT_S)

    def _ask_to_end(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_timeout_s
        while _group_alive(self.child, self.child.pid):
            if time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    self._log_file.write(
                        b"hitparity: SIGTERM did not end it within %g s; killed\n" % self._stop_timeout_s
                    )
                break
            time.sleep(0.05)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return str(number)


def _die_with_parent() -> None:
    """In the child, on Linux: SIGTERM when the harness ends in any way, so that a killed run leaves no server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _group_alive(child: subprocess.Popen[bytes], group: int) -> bool:
    """Whether any process of the group still runs; on Linux not those that ended and that nobody waits for."""
    child.poll()
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return sys.platform != "linux" or bool(_members(group))


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended, by /proc."""
    found = []
    for process in _entries(Path("/proc")):
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                # man proc_pid_stat: after the name in parentheses come state, parent and group.
                state, _, of = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                if int(of) == group and state != "Z":
                    found.append(int(process.name))
    return found


def _listening(port: int) -> list[str]:
    """Inodes of sockets that listen on a TCP port, by /proc/net."""
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = row.split()  # address:port in hexadecimal, state 0A: listening
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    found.append(fields[9])
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
