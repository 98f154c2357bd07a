"""How a process ended, in words."""


def exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
