from ..kinds import Kind


def describe(shape):
    # What `inspect` shows.
    return "a round thing" if shape.kind is Kind.ROUND else "a thing with corners"
