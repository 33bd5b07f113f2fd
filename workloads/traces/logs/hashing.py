"""Token IDs replaced under a key: who shares what with whom stays exact, and the text cannot be read.

Every token is replaced by a permutation of the vocabulary that depends on the key and on all tokens before it. So equal
prefixes stay equal, and prompts that part at some token still part there, since a permutation maps different tokens to
different ones; but a word has another number at every place, so that counting how often numbers occur tells nothing.

    secret of a place    blake2b of the secret before it and the token there; the first is the key's
    permutation          a four-round Feistel network under that secret, walked until it lands in the vocabulary

What stays visible: lengths, times, and which requests begin alike. What is lost besides the text: equal stretches
behind different beginnings (which llama.cpp's chunk shifting would reuse).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from vocabulary.errors import UsageError
from workloads.traces.base import TokenIds
from workloads.traces.chain import Words, mix

ROUNDS = 4
SHORTEST_KEY = 16
SECRET_LEN = 16
"""Bytes."""
BLOCK = 64
"""Hashed tokens are remembered in blocks, since most prompts begin like an earlier one."""


class KeyedIds:
    """Replaces IDs of `[0, vocab_size)`; the same key gives the same replacement in every file."""

    def __init__(self, key: str, vocab_size: int) -> None:
        """UsageError for a key that could be guessed by trying."""
        if len(key) < SHORTEST_KEY:
            raise UsageError(f"the hash key has {len(key)} characters; take at least {SHORTEST_KEY} random ones")
        self.vocab_size = vocab_size
        self._key = hashlib.blake2b(key.encode(), digest_size=32).digest()
        self._half_bits = max(1, -(-(vocab_size - 1).bit_length() // 2))
        self._known: dict[tuple[bytes, bytes], tuple[bytes, TokenIds]] = {}

    def ids(self, ids: TokenIds) -> TokenIds:
        """Replaced IDs, same shape. UsageError where one lies outside the vocabulary."""
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise UsageError(
                f"token ID {ids.max()} lies outside the vocabulary of {self.vocab_size}; give the model's --vocab-size"
            )
        secret, pieces, start = self._key[:SECRET_LEN], list[TokenIds](), 0
        while start < len(ids) and (known := self._known.get((secret, ids[start : start + BLOCK].tobytes()))):
            secret, replaced = known
            pieces.append(replaced)
            start += BLOCK
        if start < len(ids):
            pieces.append(self._new(secret, ids[start:]))
        return np.concatenate(pieces) if pieces else ids

    def name(self, text: str | None) -> str | None:
        """A name (session, salt, adapter) as 12 digits that only the key connects with it."""
        return None if text is None else hashlib.blake2b(text.encode(), key=self._key, digest_size=6).hexdigest()

    def _new(self, secret: bytes, ids: TokenIds) -> TokenIds:
        """IDs that follow the place of this secret, replaced, and remembered by their blocks."""
        secrets = [secret]
        for each in ids.astype("<u4").tolist():
            secret = hashlib.blake2b(secret + each.to_bytes(4, "little"), digest_size=SECRET_LEN).digest()
            secrets.append(secret)
        tweaks = np.frombuffer(b"".join(secrets[:-1]), "<u8").reshape(-1, 2)
        found = self._permuted(ids.astype(np.uint64), tweaks)
        while len(outside := np.flatnonzero(found >= self.vocab_size)):  # walking on keeps it a permutation
            found[outside] = self._permuted(found[outside], tweaks[outside])
        replaced = found.astype(np.int32)
        for start in range(0, len(ids), BLOCK):
            end = min(start + BLOCK, len(ids))
            self._known[secrets[start], ids[start:end].tobytes()] = (secrets[end], replaced[start:end].copy())
        return replaced

    def _permuted(self, words: Words, tweaks: npt.NDArray[np.uint64]) -> Words:
        """Each number below 4**half_bits, shape (n,), under its own two secret words, shape (n, 2)."""
        bits, mask = np.uint64(self._half_bits), np.uint64((1 << self._half_bits) - 1)
        left, right = words >> bits, words & mask
        for number in range(ROUNDS):
            keyed = mix(mix(right ^ tweaks[:, 0]) ^ tweaks[:, 1] ^ np.uint64(number))
            left, right = right, left ^ (keyed & mask)
        return (left << bits) | right
