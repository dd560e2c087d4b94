"""A mapping of bounded size that forgets what was not used for longest."""
from collections import OrderedDict


class Cache:
    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be at least 1")
        self._size = size
        self._entries = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self):
        return len(self._entries)

    def get(self, key, default=None):
        if key not in self._entries:
            self.misses += 1
            return default
        self.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key, value):
        if len(self._entries) >= self._size:
            self._entries.popitem(last=False)
        self._entries[key] = value
        self._entries.move_to_end(key)
