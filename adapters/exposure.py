"""API keys of attached servers, and what a configuration exposes. SECURITY.md states the model.

A key is known by the name of a variable or file only; its value goes into one HTTP header and nowhere else.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from adapters.base import EngineSpec
from vocabulary.bounded import read_text
from vocabulary.engine import Mode
from vocabulary.errors import UsageError

MAX_KEY_BYTES = 4096


def api_key(spec: EngineSpec) -> str | None:
    """The key that `api_key_env` or `api_key_file` names; None where neither is given.

    Raises UsageError where it is missing or empty, or others may read the file. No message holds the key.
    """
    if spec.api_key_env is not None:
        if key := os.environ.get(spec.api_key_env):
            return key
        raise UsageError(f"{spec.engine}: environment variable {spec.api_key_env}, named by api_key_env, is not set")
    if spec.api_key_file is None:
        return None
    key = read_text(spec.api_key_file, MAX_KEY_BYTES).strip()
    if spec.api_key_file.stat().st_mode & 0o077:
        raise UsageError(f"{spec.api_key_file}: others may read this key; chmod 600 it")
    if not key:
        raise UsageError(f"{spec.api_key_file}: holds no key")
    return key


def warnings(spec: EngineSpec) -> list[str]:
    """What somebody should know before this configuration is started, a sentence each."""
    found = []
    if spec.mode is Mode.LAUNCH and spec.port is not None:
        found.append(
            f"{spec.engine}: its server listens on port {spec.port} of this machine (loopback) without a key, where "
            f"every local user knows to find it; leave `port` out for a random one"
        )
    if spec.url is None or is_loopback(spec.url):
        return found
    found.append(f"{spec.engine}: prompts leave this machine for {spec.url}")
    if urlsplit(spec.url).scheme == "http":
        what = "prompts and the API key" if spec.api_key_env or spec.api_key_file else "prompts"
        found.append(f"{spec.engine}: {what} cross the network unencrypted; use https, or a tunnel to 127.0.0.1")
    return found


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine by its name."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
