import pytest

from sparse import Sparse


def test_zeros_are_not_stored():
    assert Sparse(2, 2, {(0, 0): 0, (1, 1): 3}).cells == {(1, 1): 3}


def test_sum():
    a = Sparse(2, 2, {(0, 0): 1}) + Sparse(2, 2, {(0, 0): 1, (0, 1): 5})
    assert a == Sparse(2, 2, {(0, 0): 2, (0, 1): 5})


def test_product():
    a = Sparse(1, 2, {(0, 0): 2, (0, 1): 3})
    b = Sparse(2, 1, {(0, 0): 5, (1, 0): 7})
    assert (a @ b)[0, 0] == 31


def test_transpose():
    assert Sparse(1, 2, {(0, 1): 4}).transpose()[1, 0] == 4


def test_bounds():
    with pytest.raises(IndexError):
        Sparse(1, 1)[1, 0]
    with pytest.raises(ValueError):
        Sparse(1, 2) + Sparse(2, 1)
