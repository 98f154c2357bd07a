"""Errors for the person who publishes or opens an application."""


class ReverseError(Exception):
    """The message names the cause, the thing at fault, and the next step."""
