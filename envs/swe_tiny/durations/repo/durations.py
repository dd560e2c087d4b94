"""Spans of time as people write them: 1h30m, 45s."""
import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms])")


def parse(text):
    """Seconds in a text such as "1h30m"."""
    at = 0
    total = 0.0
    while at < len(text):
        m = PART.match(text, at)
        if m is None:
            raise ValueError(f"no duration: {text!r}")
        total += float(m[1]) * UNITS[m[2]]
        at = m.end()
    if at == 0:
        raise ValueError("no duration: ''")
    return total


def format_seconds(seconds):
    """The shortest text, to the second; larger units first, none of them 0 at the front."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    text = ""
    for value, unit in ((days, "d"), (hours, "h"), (minutes, "m")):
        if value or text:
            text += f"{value}{unit}"
    return text + f"{round(rest)}s"
