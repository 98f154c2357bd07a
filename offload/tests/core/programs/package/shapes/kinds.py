from enum import Enum


class Kind(Enum):
    ROUND = "round"
    ANGULAR = "angular"
