"""Every shape of outcome that sympy's own runner has a word for."""
from sympy.testing.pytest import XFAIL, skip


def test_passes():
    pass


def test_fails():
    assert 1 == 2


def test_errors():
    raise RuntimeError("broken")


def test_skips():
    skip("not today")


@XFAIL
def test_fails_as_expected():
    assert False
