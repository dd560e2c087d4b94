import pytest

from lru import Cache


def test_forgets_the_oldest():
    c = Cache(2)
    for key in "abc":
        c.put(key, key.upper())
    assert c.get("a") is None
    assert c.get("c") == "C"


def test_a_read_counts_as_use():
    c = Cache(2)
    c.put("a", 1)
    c.put("b", 2)
    c.get("a")
    c.put("c", 3)
    assert c.get("a") == 1
    assert c.get("b") is None


def test_counts():
    c = Cache(1)
    c.get("x")
    c.put("x", 0)
    c.get("x")
    assert (c.hits, c.misses, len(c)) == (1, 1, 1)


def test_size_is_checked():
    with pytest.raises(ValueError):
        Cache(0)
