"""Numbers for prefixes: the same number for the same leading units of the same namespace.

vLLM chains hashes, H(parent key, tokens of a unit). Here a compressed radix tree over whole units gives every
prefix one number, without hashes that could collide; walking it compares long runs of tokens at once, so the cost
is linear in the prompt and does not depend on how many prompts are known.

With `lookahead` n a unit's key also covers the n tokens behind it (vLLM 0.33.0, v1/core/kv_cache_utils.py): two
prompts share the key of a unit only when those tokens agree too.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from reference_engine.laws.base import Ids, Slots
from reference_engine.laws.parts.chained import Chained, Numbering, Tokens, per_block
from reference_engine.laws.parts.history import common_prefix


class _Node:
    """An edge of whole units; its keys are `first_key, first_key + 1, ...`."""

    __slots__ = ("children", "first_key", "ids")

    def __init__(self, ids: Ids, first_key: int) -> None:
        self.ids, self.first_key = ids, first_key
        self.children: dict[bytes, _Node] = {}


class Renumbering:
    """New numbers for the keys that are kept: each block of a trace has a range of them, kept or dropped whole."""

    def __init__(self, firsts: Slots, count: int, used: Slots) -> None:
        """`firsts`: where the ranges of the keys `1 .. count` begin; those with a `used` key are kept."""
        self._firsts = np.sort(firsts)
        kept = np.zeros(len(firsts), np.bool_)
        kept[self._ranges(used)] = True
        sizes = np.diff(self._firsts, append=count + 1) * kept
        self.count = int(sizes.sum())
        """Keys by now."""
        self._begins = (np.cumsum(sizes) - sizes + 1) * kept

    def __call__(self, keys: Slots) -> Slots:
        """The numbers of keys, none of them 0; 0: dropped."""
        at = self._ranges(keys)
        begins = self._begins[at]
        return np.where(begins > 0, begins + keys - self._firsts[at], 0)

    def _ranges(self, keys: Slots) -> Slots:
        return np.searchsorted(self._firsts, keys, "right") - 1


class KeyRadix:
    """Keys of prefixes, counted from 1; they stay valid until `clear` or `keep`."""

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        self.unit, self.lookahead = unit, lookahead
        self.clear()

    def clear(self) -> None:
        """Forget every prefix."""
        self._roots: dict[tuple[Hashable, bytes], _Node] = {}
        self._numbering = Numbering()
        self.count = 0
        """Keys handed out so far."""

    def units(self, length: int) -> int:
        """Units of a sequence of `length` tokens that have a key."""
        return max(0, length - self.lookahead) // self.unit

    def keys(self, ids: Tokens, namespace: Hashable) -> Slots:
        """Keys of all units of `ids`, made if need be; entry i stands for the prefix of i + 1 units."""
        if isinstance(ids, Chained):
            return self._chained_keys(ids, namespace)
        ahead, unit = self.lookahead, self.unit
        end = self.units(len(ids)) * unit
        if end == 0:
            return np.empty(0, np.int64)
        stream = ids[ahead : ahead + end]
        node = self._root(namespace, ids[:ahead].tobytes())
        runs: list[Slots] = []
        depth = 0
        while depth < end:
            name = stream[depth : depth + unit].tobytes()
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = _Node(stream[depth:].copy(), self.count + 1)
                self.count += (end - depth) // unit
            common = common_prefix(child.ids, stream[depth:]) // unit * unit
            if common < len(child.ids) and depth + common < end:
                self._split(child, common)
            runs.append(np.arange(child.first_key, child.first_key + common // unit))
            node, depth = child, depth + common
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def keep(self, used: Slots) -> Renumbering | None:
        """Forget blocks of a trace with none of the keys `used`; whoever holds others has to renumber them.

        None: prompts came as tokens, and keep their keys.
        """
        if self._roots:
            return None
        numbers = Renumbering(self._numbering.known(), self.count, used)
        self._numbering.move(numbers)
        self.count = numbers.count
        return numbers

    def _chained_keys(self, ids: Chained, namespace: Hashable) -> Slots:
        """Every block has a range of numbers, and the output of a request another."""
        unit, ahead = self.unit, self.lookahead
        step = per_block(ids.block_len, unit)
        firsts, self.count = self._numbering.firsts(namespace, ids.blocks, step, self.count)
        keys = ids.numbers(unit, ahead, firsts)
        more = self.units(ids.stop) - len(keys)
        if more <= 0:
            return keys
        step = self.units(ids.capacity) - ids.units(unit, ahead)
        output = np.asarray([ids.outputs])
        first, self.count = self._numbering.firsts((namespace, "output"), output, step, self.count)
        return np.concatenate([keys, first[0] + np.arange(more)])

    def _root(self, namespace: Hashable, ahead: bytes) -> _Node:
        return self._roots.setdefault((namespace, ahead), _Node(np.empty(0, np.int32), 0))

    def _split(self, node: _Node, at: int) -> None:
        """Cut an edge at `at` tokens; the node keeps the upper part."""
        lower = _Node(node.ids[at:], node.first_key + at // self.unit)
        lower.children = node.children
        node.ids, node.children = node.ids[:at], {lower.ids[: self.unit].tobytes(): lower}
