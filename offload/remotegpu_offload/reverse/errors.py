"""What a person reads when an application cannot be published or opened."""


class ReverseError(Exception):
    """The message names the cause, the thing at fault, and the next step."""
