"""A pool of equal blocks shared by several layer groups: references, the keys of their content, eviction.

Source: vLLM 0.23.0 to 0.33.0, v1/core/block_pool.py. A key is found per layer group. One key may be held by several
blocks (a prompt of whole blocks recomputes its last one); the oldest answers. A block may carry more than one key
(a prompt's tail inside a block, vLLM 0.26.0 and later). A block loses its keys when it is handed out again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.free_queue import FreeQueue

Mask = npt.NDArray[np.bool_]


class KeyedBlocks:
    """Blocks counted from 1; 0 stands for "no block" wherever blocks are listed."""

    def __init__(self, num_blocks: int | None, groups: int) -> None:
        """`num_blocks` counts block 0; None: unbounded, nothing is ever evicted."""
        self.num_blocks, self.groups = num_blocks, groups
        self.queue = FreeQueue(num_blocks)
        self.clear()

    def clear(self) -> None:
        """All blocks free, no key known."""
        self.queue.clear()
        size = 1024 if self.num_blocks is None else self.num_blocks
        self._refs = np.zeros(size, np.int32)
        self._key = np.zeros(size, np.int64)
        self._group = np.zeros(size, np.int16)
        self._tokens = np.zeros(size, np.int64)
        self._holder = np.zeros((self.groups, 1024), np.int64)
        self._ever = np.zeros((self.groups, 1024), np.bool_)
        self._others: dict[tuple[int, int], list[int]] = {}  # further holders of a key, oldest first
        self._more: dict[int, list[int]] = {}  # further keys of a block
        self.evicted = False
        """Whether a findable block has been handed out again since the last clear."""

    def grow_keys(self, count: int) -> None:
        """Make room for keys `1 .. count`."""
        have = self._holder.shape[1]
        if count >= have:
            wide = ((0, 0), (0, max(have, count + 1 - have)))
            self._holder, self._ever = np.pad(self._holder, wide), np.pad(self._ever, wide)

    # -- finding -------------------------------------------------------------------------------------------------

    def holders(self, group: int, keys: Slots) -> Slots:
        """The block that holds each key in a group; 0: none."""
        found: Slots = self._holder[group][keys]
        return found

    def found(self, groups: tuple[int, ...], keys: Slots, *, ever: bool = False) -> Mask:
        """Which keys are held in all of `groups`; `ever`: or would be if nothing had been evicted."""
        table = self._ever if ever else self._holder
        found: Mask = table[groups[0]][keys] != 0
        for group in groups[1:]:
            found &= table[group, keys] != 0
        return found

    # -- taking and giving back ----------------------------------------------------------------------------------

    def take(self, count: int) -> Slots:
        """Hand out blocks with one reference each; PoolExhausted, and no effect, when there are too few."""
        if count <= 0:
            return np.empty(0, np.int64)
        blocks = self.queue.take(count)
        if self.queue.seen > len(self._refs):
            more = self.queue.seen
            self._refs = np.concatenate([self._refs, np.zeros(more, np.int32)])
            self._key = np.concatenate([self._key, np.zeros(more, np.int64)])
            self._group = np.concatenate([self._group, np.zeros(more, np.int16)])
            self._tokens = np.concatenate([self._tokens, np.zeros(more, np.int64)])
        keyed = self._key[blocks]
        if keyed.any():
            self.evicted = True
            self.forget(blocks if keyed.all() else blocks[keyed != 0])
        self._refs[blocks] = 1
        return blocks

    def share(self, blocks: Slots) -> None:
        """One more reference each; a block that was free leaves the queue."""
        if len(blocks):
            refs = self._refs[blocks]
            self.queue.remove(blocks[refs == 0] if refs.any() else blocks)
            self._refs[blocks] = refs + 1

    def retain(self, block: int) -> None:
        """One more reference to a block that is referenced already."""
        self._refs[block] += 1

    def give_back(self, blocks: Slots, *, sort: bool = True) -> None:
        """Drop one reference each. Freed blocks queue at the end in this order; `sort`: those without a key in front.

        No block may be listed twice.
        """
        if not len(blocks):
            return
        refs = self._refs[blocks] - 1
        self._refs[blocks] = refs
        freed = blocks[refs == 0] if refs.any() else blocks
        if self.num_blocks is None or sort:
            keyed = self._key[freed] != 0
            if not keyed.all():
                self.queue.prepend(freed[~keyed])
                freed = freed[keyed]
        if self.num_blocks is not None:
            self.queue.append(freed)

    def unreferenced(self, blocks: Slots) -> int:
        """How many of the blocks nobody holds (they leave the free queue when they are shared)."""
        return int(np.count_nonzero((self._refs[blocks] == 0) & (blocks != 0))) if len(blocks) else 0

    # -- keys ----------------------------------------------------------------------------------------------------

    def key_tokens(self, block: int) -> int | None:
        """Tokens of the prefix that the block's first key stands for; None: it has no key."""
        return int(self._tokens[block]) if self._key[block] else None

    def publish(self, group: int, keys: Slots, blocks: Slots, tokens: Slots) -> None:
        """Make blocks findable; a block that had a shorter prefix's key loses it (it has been filled since)."""
        had = self._key[blocks]
        if had.any():
            self.forget(blocks[had != 0])
        self._key[blocks], self._tokens[blocks] = keys, tokens
        if group:  # entries of blocks without a key are 0
            self._group[blocks] = group
        self._enter(group, keys, blocks)

    def publish_also(self, group: int, key: int, block: int, tokens: int) -> None:
        """Make a block findable under the key of a position inside it, beside those it has for later positions."""
        held = int(self._key[block])
        if held == key or key in self._more.get(block, ()):
            return
        if held and self._tokens[block] < tokens:
            self.forget(np.asarray([block]))
            held = 0
        if held:
            self._more.setdefault(block, []).append(key)
        else:
            self._key[block], self._group[block], self._tokens[block] = key, group, tokens
        self._enter(group, np.asarray([key]), np.asarray([block]))

    def move_keys(self, source: int, target: int) -> None:
        """The target block takes over all keys of the source; both are held by the same layer group."""
        key, group, tokens = int(self._key[source]), int(self._group[source]), int(self._tokens[source])
        if not key:
            return
        more = self._more.get(source, [])[:]
        self.forget(np.asarray([source]))
        self._key[target], self._group[target], self._tokens[target] = key, group, tokens
        if more:
            self._more[target] = more
        for each in (key, *more):
            self._enter(group, np.asarray([each]), np.asarray([target]))

    def forget(self, blocks: Slots) -> None:
        """The blocks' content can no longer be found."""
        keys = self._key[blocks]
        keyed = blocks if keys.all() else blocks[keys != 0]
        if not len(keyed):
            return
        keys, groups = self._key[keyed], self._group[keyed]
        self._key[keyed] = 0
        if self.groups > 1:
            self._group[keyed] = 0
        if self._others or self._more:
            for block, key, group in zip(keyed.tolist(), keys.tolist(), groups.tolist(), strict=True):
                for each in (key, *self._more.pop(block, ())):
                    self._leave(group, each, block)
        elif self.groups == 1:
            self._holder[0][keys] = 0
        else:
            self._holder[groups, keys] = 0

    def _enter(self, group: int, keys: Slots, blocks: Slots) -> None:
        holder = self._holder[group]
        vacant = holder[keys] == 0
        if vacant.all():
            holder[keys] = blocks
        else:
            holder[keys[vacant]] = blocks[vacant]
            for key, block in zip(keys[~vacant].tolist(), blocks[~vacant].tolist(), strict=True):
                self._others.setdefault((group, key), []).append(block)
        self._ever[group, keys] = True

    def _leave(self, group: int, key: int, block: int) -> None:
        others = self._others.get((group, key))
        if others is None:
            self._holder[group, key] = 0
            return
        if self._holder[group, key] == block:
            self._holder[group, key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[group, key]

    # -- books ---------------------------------------------------------------------------------------------------

    @property
    def referenced(self) -> int:
        """Blocks somebody holds."""
        return int(np.count_nonzero(self._refs))

    def check_integrity(self, held: Callable[[], Slots]) -> None:
        """AssertionError unless each block is free or referenced, each key is held by a block that carries it.

        `held()` lists every reference the owners know of.
        """
        counts = np.bincount(held(), minlength=len(self._refs))
        counts[0] = 0
        assert np.array_equal(counts[: len(self._refs)], self._refs), "references do not match the owners' tables"
        queued = self.queue.blocks()
        assert len(np.unique(queued)) == len(queued), "block queued twice"
        assert not self._refs[queued].any(), "block both free and held"
        if self.num_blocks is not None:
            assert len(queued) + self.referenced == self.num_blocks - 1, "blocks neither free nor held"
        for group in range(self.groups):
            keys = np.flatnonzero(self._holder[group])
            for key, block in zip(keys.tolist(), self._holder[group, keys].tolist(), strict=True):
                for each in (block, *self._others.get((group, key), ())):
                    assert self._group[each] == group, "key found in another group"
                    assert key == self._key[each] or key in self._more.get(each, ()), "key of a block that lost it"
