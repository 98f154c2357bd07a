"""Verifies Ed25519 signatures in pure Python, after RFC 8032, section 5.1.

The client uses it, because it has no other packages. No input is secret, so the time may vary. Signing needs constant
time and is done by the package `cryptography` (signing.py). A verification takes about 5 ms.
"""

import hashlib
from typing import Final

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_P: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT_OF_MINUS_ONE: Final = pow(2, (_P - 1) // 4, _P)

# A point in extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z.
_Point = tuple[int, int, int, int]


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Returns whether `signature` (64 bytes) of `message` was made with the private key of `key` (32 bytes).

    Never raises.
    """
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    holder, commitment = _decompress(key), _decompress(signature[:32])
    answer = int.from_bytes(signature[32:], "little")
    # Without this check, adding the order would make other valid signatures from one.
    if holder is None or commitment is None or answer >= _ORDER:
        return False
    digest = hashlib.sha512(signature[:32] + key + message).digest()
    challenge = int.from_bytes(digest, "little") % _ORDER
    return _same(_times(answer, _BASE), _add(commitment, _times(challenge, holder)))


def _add(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(count: int, point: _Point) -> _Point:
    result: _Point = (0, 1, 1, 0)
    while count:
        if count & 1:
            result = _add(result, point)
        point = _add(point, point)
        count >>= 1
    return result


def _same(one: _Point, other: _Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (one[1] * other[2] - other[1] * one[2]) % _P == 0


def _recover_x(y: int, sign: int) -> int | None:
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    if square == 0:
        return None if sign else 0
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P != 0:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - square) % _P != 0:
        return None
    return _P - x if x & 1 != sign else x


def _decompress(encoded: bytes) -> _Point | None:
    number = int.from_bytes(encoded, "little")
    y = number & ((1 << 255) - 1)
    x = _recover_x(y, number >> 255)
    return None if x is None else (x, y, 1, x * y % _P)


def _base() -> _Point:
    y = 4 * pow(5, _P - 2, _P) % _P
    x = _recover_x(y, 0)
    assert x is not None
    return x, y, 1, x * y % _P


_BASE: Final = _base()
