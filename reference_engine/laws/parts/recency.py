"""A list of tree nodes from the most to the least recently used, with moves in constant time."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class _Link(Generic[T]):
    __slots__ = ("item", "newer", "older")

    def __init__(self, item: T | None) -> None:
        self.item = item
        self.newer: _Link[T] = self
        self.older: _Link[T] = self


class Recency(Generic[T]):
    """Items by use; each is in the list at most once."""

    def __init__(self) -> None:
        self.clear()

    def __contains__(self, item: T) -> bool:
        return item in self._links

    def __len__(self) -> int:
        return len(self._links)

    def clear(self) -> None:
        """Forget every item."""
        # One sentinel closes the ring: older of it is the newest item, newer of it the oldest.
        self._end: _Link[T] = _Link(None)
        self._links: dict[T, _Link[T]] = {}

    def add(self, item: T) -> None:
        """A new item, the most recently used one."""
        assert item not in self._links, "item is in the list already"
        self._links[item] = self._insert(_Link(item), self._end)

    def add_behind(self, newer: T, item: T) -> None:
        """A new item, used just before `newer`."""
        assert item not in self._links, "item is in the list already"
        self._links[item] = self._insert(_Link(item), self._links[newer])

    def use(self, *items: T) -> None:
        """Make these the most recently used ones, the first of them the newest."""
        place = self._end
        for item in items:
            link = self._links[item]
            self._unlink(link)
            place = self._insert(link, place)

    def remove(self, item: T) -> None:
        """The item leaves the list."""
        self._unlink(self._links.pop(item))

    def newer_than(self, item: T) -> T | None:
        """The item used just after this one; None: it is the newest."""
        return self._links[item].newer.item

    def oldest(self) -> T | None:
        """The least recently used item."""
        return self._end.newer.item

    @staticmethod
    def _insert(link: _Link[T], place: _Link[T]) -> _Link[T]:
        """Put `link` just behind (older than) `place`."""
        link.newer, link.older = place, place.older
        place.older.newer = link
        place.older = link
        return link

    @staticmethod
    def _unlink(link: _Link[T]) -> None:
        link.newer.older, link.older.newer = link.older, link.newer
