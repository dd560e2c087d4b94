"""Reads versions as semver.org defines them."""
import re
from typing import NamedTuple, Tuple

PATTERN = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?"
)


class Version(NamedTuple):
    major: int
    minor: int
    patch: int
    pre: Tuple[str, ...]
    build: str


def parse(text):
    m = PATTERN.fullmatch(text)
    if m is None:
        raise ValueError(f"no version: {text!r}")
    pre = tuple(m[4].split(".")) if m[4] else ()
    return Version(int(m[1]), int(m[2]), int(m[3]), pre, m[5] or "")
