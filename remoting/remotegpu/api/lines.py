"""Makes foreign text safe for one of our lines."""


def one_line(value: object, most: int) -> str:
    """Returns a tenant's or stranger's text for a log or a terminal: no terminal commands, no line breaks.

    `most`: characters.
    """
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])
