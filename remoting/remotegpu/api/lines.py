"""Makes untrusted text safe to print on one line."""


def one_line(value: object, most: int) -> str:
    """Returns untrusted text made safe for a log or a terminal: "?" replaces control characters and line breaks.

    The text is cut after `most` characters.
    """
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])
