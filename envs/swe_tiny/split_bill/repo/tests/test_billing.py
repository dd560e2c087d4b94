import pytest

from billing.invoice import Table
from billing.shares import split


def test_even_split():
    assert split(90, [1, 1, 1]) == [30, 30, 30]
    assert split(100, [3, 1]) == [75, 25]


def test_weights_are_checked():
    for weights in ([0, 0], [1, -1], [2, -1]):
        with pytest.raises(ValueError):
            split(10, weights)


def test_bill():
    t = Table()
    t.order("ann", 1000)
    t.order("bob", 500)
    t.order("ann", 500)
    assert t.bill(10) == {"ann": 1650, "bob": 550}
