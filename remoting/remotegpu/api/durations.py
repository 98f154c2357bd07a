"""Parses and formats durations of specs: "90s", "10m", "1h30m"."""

import re
from typing import Final

_DURATION: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,6})s)?")


def parse_duration(text: str) -> int:
    """Returns the seconds of a duration such as "1h30m". Raises ValueError if the text is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is no time: write hours, minutes and seconds, as 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (hours * 60 + minutes) * 60 + seconds


def format_duration(seconds: int) -> str:
    """Returns a duration in its shortest form: 5400 seconds are "1h30m"."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
