"""What software GPUs can be like: the values of REMOTEGPU_SOFTGPU_PROFILE."""

from enum import StrEnum


class Profile(StrEnum):
    NORMAL = "normal"
    HOSTILE = "hostile"
    SLOW = "slow"
    NULL_H100 = "null-h100"

    @property
    def is_null(self) -> bool:
        """Whether no kernel runs: such a GPU takes machine code, and all its results are meaningless."""
        return self is Profile.NULL_H100

    @property
    def memory_bytes(self) -> int:
        """Of each GPU, unless somebody says otherwise. That of a null GPU is little more than addresses."""
        return 80 << 30 if self.is_null else 8 << 30

    @classmethod
    def of(cls, text: str | None) -> "Profile":
        """As the software GPU reads it: what it does not know is normal."""
        return cls(text) if text in list(cls) else cls.NORMAL
