"""Formats the exit status of a process."""


def exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
