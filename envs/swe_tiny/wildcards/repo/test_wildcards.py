import pytest

from wildcards import matches, select


@pytest.mark.parametrize(
    "pattern, text",
    [("abc", "abc"), ("a?c", "abc"), ("*", ""), ("*.py", "x.py"), ("a*", "a"), ("a*c", "abbbc"), ("", "")],
)
def test_fits(pattern, text):
    assert matches(pattern, text)


@pytest.mark.parametrize("pattern, text", [("a", ""), ("?", ""), ("a*c", "ab"), ("ab", "abc"), ("", "a")])
def test_does_not_fit(pattern, text):
    assert not matches(pattern, text)


def test_select():
    names = ["a.py", "test_a.py", "b.c"]
    assert select(names, "*.py", "test*") == ["a.py"]
