"""What others wrote, in a line of ours."""


def one_line(value: object, most: int) -> str:
    """What a tenant or a stranger wrote, for a log or a terminal: neither commands to it, nor what looks like a line of
    ours. `most`: characters."""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])
