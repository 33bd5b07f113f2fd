"""A pool of equal blocks shared by several layer groups: references, the keys of their content, eviction.

Source: vLLM 0.23.0 to 0.33.0, v1/core/block_pool.py. A key is found per layer group. One key may be held by several
blocks (a prompt of whole blocks recomputes its last one); the oldest answers. A block may carry more than one key
(a prompt's tail inside a block, vLLM 0.26.0 and later). A block loses its keys when it is handed out again.

A key and a layer group make an entry, `key * groups + group`. Memory: 9 bytes per entry, one more where the pool
remembers what it ever held, and up to 56 per block (24 of tables, four places of 8 in the queue).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reference_engine.laws.base import Slots
from reference_engine.laws.parts.chained import longer
from reference_engine.laws.parts.free_queue import FreeQueue

Mask = npt.NDArray[np.bool_]
NONE: Slots = np.empty(0, np.int64)


class KeyedBlocks:
    """Blocks counted from 1; 0 stands for "no block" wherever blocks are listed."""

    def __init__(self, num_blocks: int | None, groups: int, *, remembers: bool = True) -> None:
        """`num_blocks` counts block 0; None: unbounded, nothing is ever evicted.

        `remembers`: whether `found` can say what would be held if nothing had been evicted.
        """
        self.num_blocks, self.groups, self.remembers = num_blocks, groups, remembers
        self.queue = FreeQueue(num_blocks)
        self.clear()

    def clear(self) -> None:
        """All blocks free, no key known."""
        self.queue.clear()
        self._entry = np.zeros(self.queue.seen, np.int64)  # the first of a block; 0: it has none
        self._tokens = np.zeros(self.queue.seen, np.int64)
        self._holder, self._ever = NONE, np.empty(0, np.bool_)
        self._several = np.empty(0, np.bool_)  # whether an entry is in `_others`
        self._others: dict[int, list[int]] = {}  # further holders of an entry, oldest first
        self._more: dict[int, list[int]] = {}  # further entries of a block
        self.evicted = False
        """Whether a findable block has been handed out again since the last clear."""

    def grow_keys(self, count: int) -> None:
        """Make room for keys `1 .. count`."""
        size = (count + 1) * self.groups
        if size > len(self._holder):
            self._holder, self._several = longer(self._holder, size), longer(self._several, size)
            if self.remembers:
                self._ever = longer(self._ever, size)

    # -- finding -------------------------------------------------------------------------------------------------

    def holders(self, group: int, keys: Slots) -> Slots:
        """The block that holds each key in a group; 0: none."""
        return self._holder.take(self._entries(group, keys))

    def found(self, groups: tuple[int, ...], keys: Slots, *, ever: bool = False) -> Mask:
        """Which keys are held in all of `groups`; `ever`: or would be if nothing had been evicted."""
        table = self._ever if ever else self._holder
        found: Mask = table.take(self._entries(groups[0], keys)) != 0
        for group in groups[1:]:
            found &= table.take(self._entries(group, keys)) != 0
        return found

    def _entries(self, group: int, keys: Slots) -> Slots:
        return keys if self.groups == 1 else keys * self.groups + group

    # -- taking and giving back ----------------------------------------------------------------------------------

    def take(self, count: int) -> Slots:
        """Hand out blocks with one reference each; PoolExhausted, and no effect, when there are too few."""
        if count <= 0:
            return NONE
        blocks = self.queue.take(count)
        if self.queue.seen > len(self._entry):
            self._entry, self._tokens = longer(self._entry, self.queue.seen), longer(self._tokens, self.queue.seen)
        if self.forget(blocks):
            self.evicted = True
        return blocks

    def share(self, blocks: Slots) -> None:
        """One more reference each; a block that was free leaves the queue."""
        if len(blocks):
            self.queue.share(blocks)

    def give_back(self, blocks: Slots, *, sort: bool = True, blank: int | None = None) -> None:
        """Drop one reference each. Freed blocks queue at the end in this order; `sort`: those without a key in front.

        No block may be listed twice. `blank`: how many of the first have no key, and they alone; None: not known.
        """
        if not len(blocks):
            return
        freed = self.queue.drop(blocks)
        if self.num_blocks is None or sort:
            if blank is None or len(freed) < len(blocks):
                keyed = self._entry.take(freed) != 0
                self.queue.prepend(freed[~keyed])
                freed = freed[keyed]
            else:
                self.queue.prepend(freed[:blank])
                freed = freed[blank:]
        if self.num_blocks is None:
            self.queue.shelve(freed)
        else:
            self.queue.append(freed)

    def unreferenced(self, blocks: Slots) -> int:
        """How many of the blocks nobody holds (they leave the free queue when they are shared)."""
        return self.queue.queued(blocks) if len(blocks) else 0

    # -- keys ----------------------------------------------------------------------------------------------------

    def key_tokens(self, block: int) -> int | None:
        """Tokens of the prefix that the block's first key stands for; None: it has no key."""
        return int(self._tokens[block]) if self._entry[block] else None

    def publish(self, group: int, keys: Slots, blocks: Slots, tokens: Slots | None) -> None:
        """Make blocks findable; a block that had a shorter prefix's key loses it (it has been filled since).

        `tokens`: of the prefixes; None: no block has a key yet, and nobody will ask for `key_tokens`.
        """
        if tokens is not None:
            self.forget(blocks)
            self._tokens[blocks] = tokens
        entries = self._entries(group, keys)
        self._entry[blocks] = entries
        self._enter(entries, blocks)

    def publish_also(self, group: int, key: int, block: int, tokens: int) -> None:
        """Make a block findable under the key of a position inside it, beside those it has for later positions."""
        held, entry = int(self._entry[block]), key * self.groups + group
        if held == entry or entry in self._more.get(block, ()):
            return
        if held and self._tokens[block] < tokens:
            self.forget(np.asarray([block]))
            held = 0
        if held:
            self._more.setdefault(block, []).append(entry)
        else:
            self._entry[block], self._tokens[block] = entry, tokens
        self._enter(np.asarray([entry]), np.asarray([block]))

    def move_keys(self, source: int, target: int) -> None:
        """The target block takes over all keys of the source; both are held by the same layer group."""
        entry, tokens = int(self._entry[source]), int(self._tokens[source])
        if not entry:
            return
        more = self._more.get(source, [])[:]
        self.forget(np.asarray([source]))
        self._entry[target], self._tokens[target] = entry, tokens
        if more:
            self._more[target] = more
        for each in (entry, *more):
            self._enter(np.asarray([each]), np.asarray([target]))

    def forget(self, blocks: Slots) -> bool:
        """The blocks' content can no longer be found; gives whether any could be."""
        entries = self._entry.take(blocks)
        if not np.count_nonzero(entries):
            return False
        self._entry[blocks] = 0
        if self._more:
            for block, entry in zip(blocks.tolist(), entries.tolist(), strict=True):
                for each in (entry, *self._more.pop(block, ())):
                    self._leave(each, block)
        else:
            if self._others:
                several = self._several.take(entries)
                for block, entry in zip(blocks[several].tolist(), entries[several].tolist(), strict=True):
                    self._leave(entry, block)
                entries = entries[~several]
            self._holder[entries] = 0
        return True

    def _enter(self, entries: Slots, blocks: Slots) -> None:
        if self.remembers:
            self._ever[entries] = True
        holders = self._holder.take(entries)
        if np.count_nonzero(holders):
            taken = holders != 0
            for entry, block in zip(entries[taken].tolist(), blocks[taken].tolist(), strict=True):
                self._others.setdefault(entry, []).append(block)
            self._several[entries[taken]] = True
            entries, blocks = entries[~taken], blocks[~taken]
        self._holder[entries] = blocks

    def _leave(self, entry: int, block: int) -> None:
        others = self._others.get(entry)
        if others is None:  # also where there is no entry
            self._holder[entry] = 0
            return
        if self._holder[entry] == block:
            self._holder[entry] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[entry]
            self._several[entry] = False

    def keys(self) -> Slots:
        """All that blocks have; only where there is one group."""
        keys: Slots = self._entry[self._entry != 0]
        return keys

    def renumber(self, moved: Callable[[Slots], Slots], count: int) -> None:
        """Keys have other numbers, up to `count`; only where there is one group and nothing is remembered."""
        assert self.groups == 1
        assert not self.remembers
        keyed, held = np.flatnonzero(self._entry), np.flatnonzero(self._holder)
        self._entry[keyed] = moved(self._entry[keyed])
        holder, self._holder, self._several = self._holder[held], NONE, np.empty(0, np.bool_)
        self.grow_keys(count)
        self._holder[moved(held)] = holder
        others = moved(np.fromiter(self._others, np.int64, len(self._others)))
        self._several[others] = True
        self._others = dict(zip(others.tolist(), self._others.values(), strict=True))

    # -- books ---------------------------------------------------------------------------------------------------

    def check_integrity(self, held: Callable[[], Slots]) -> None:
        """AssertionError unless each block is free or referenced, each key is held by a block that carries it.

        `held()` lists every reference the owners know of.
        """
        references, queued = self.queue.references(), self.queue.blocks()
        counts = np.bincount(held(), minlength=len(references))
        counts[0] = 0
        assert np.array_equal(counts[: len(references)], references), "references do not match the owners' tables"
        assert references.sum() == self.queue.held, "references miscounted"
        assert len(np.unique(queued)) == len(queued) == self.queue.free, "block queued twice"
        assert not references[queued].any(), "block both free and held"
        if self.num_blocks is not None:
            assert len(queued) + np.count_nonzero(references) == self.num_blocks - 1, "blocks neither free nor held"
        assert sorted(self._others) == np.flatnonzero(self._several).tolist(), "keys held twice are not marked as such"
        entries = np.flatnonzero(self._holder)
        for entry, block in zip(entries.tolist(), self._holder[entries].tolist(), strict=True):
            for each in (block, *self._others.get(entry, ())):
                assert entry == self._entry[each] or entry in self._more.get(each, ()), "key of a block that lost it"
