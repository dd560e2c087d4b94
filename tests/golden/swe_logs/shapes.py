"""Every shape of outcome that pytest has a word for; tools/golden/swe_logs.sh runs it."""
import pytest


@pytest.mark.parametrize("text", ["plain", "two words", "a - b", "[nested]", "/usr/bin/env"])
def test_passes(text):
    print("PASSED is also a word that programs print")
    assert text


@pytest.mark.parametrize("n", [1, 2])
def test_fails(n):
    assert n == 3, "wanted 3 - got another"


@pytest.fixture
def broken():
    raise RuntimeError("no such fixture - really")


def test_errors(broken):
    pass


@pytest.mark.skip(reason="not today")
def test_skips():
    pass


@pytest.mark.xfail(reason="known")
def test_fails_as_expected():
    assert False


@pytest.mark.xfail
def test_passes_unexpectedly():
    pass


class TestGroup:
    def test_method(self):
        pass
