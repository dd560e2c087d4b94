import pytest

from csvline import CsvError, join_fields, split_line


def test_plain():
    assert split_line("a,b,,d") == ["a", "b", "", "d"]


def test_quoted_separator():
    assert split_line('"a,b",c') == ["a,b", "c"]


def test_other_separator():
    assert split_line("a;b,c", ";") == ["a", "b,c"]


def test_open_quote():
    with pytest.raises(CsvError):
        split_line('"a,b')


def test_join():
    assert join_fields(["a", 'b"c', "d,e"]) == 'a,"b""c","d,e"'
