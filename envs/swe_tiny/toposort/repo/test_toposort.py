import pytest

from toposort import CycleError, order


def test_chain():
    assert order({"app": ["lib"], "lib": ["base"]}) == ["base", "lib", "app"]


def test_ties_are_alphabetical():
    assert order({"b": [], "a": [], "c": ["a"]}) == ["a", "b", "c"]


def test_all_in_a_cycle():
    with pytest.raises(CycleError) as e:
        order({"a": ["b"], "b": ["a"]})
    assert e.value.members == ["a", "b"]


def test_nothing():
    assert order({}) == []
