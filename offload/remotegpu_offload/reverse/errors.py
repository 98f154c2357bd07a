"""Errors for users who publish or open an application."""


class ReverseError(Exception):
    """An application cannot be published or opened. The message names the cause, the object concerned and a remedy."""
