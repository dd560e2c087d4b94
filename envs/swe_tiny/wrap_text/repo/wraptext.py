"""Breaks text into lines."""


def wrap(text, width):
    """Lines of at most `width` characters; a longer word has a line of its own."""
    if width < 1:
        raise ValueError("width must be at least 1")
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) <= width:
            line += " " + word
        elif not line and len(word) <= width:
            line = word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def indent(text, width, prefix):
    """Wrapped text, each line behind `prefix`, which counts."""
    return "\n".join(prefix + line for line in wrap(text, width - len(prefix)))
