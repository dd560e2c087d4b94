import pytest

from wraptext import indent, wrap


def test_words_fill_lines():
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_exact_width():
    assert wrap("ab cd", 5) == ["ab cd"]


def test_a_long_word_later():
    assert wrap("a extraordinary b", 5) == ["a", "extraordinary", "b"]


def test_no_words():
    assert wrap("  \n ", 8) == []


def test_indent():
    assert indent("one two", 5, "> ") == "> one\n> two"


def test_width_is_checked():
    with pytest.raises(ValueError):
        wrap("a", 0)
