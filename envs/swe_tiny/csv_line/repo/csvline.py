"""One line of comma-separated values."""


class CsvError(ValueError):
    pass


def split_line(line, separator=","):
    """The fields of a line; quoted ones may hold separators."""
    fields = []
    field = []
    quoted = False
    for c in line:
        if c == '"':
            quoted = not quoted
        elif c == separator and not quoted:
            fields.append("".join(field))
            field = []
        else:
            field.append(c)
    if quoted:
        raise CsvError("a quote is not closed")
    fields.append("".join(field))
    return fields


def join_fields(fields, separator=","):
    """The line that split_line reads as these fields."""
    out = []
    for field in fields:
        if separator in field or '"' in field:
            field = '"' + field.replace('"', '""') + '"'
        out.append(field)
    return separator.join(out)
