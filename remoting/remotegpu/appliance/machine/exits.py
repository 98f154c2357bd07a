"""Describes how a process ended."""


def exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
