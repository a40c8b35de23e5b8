"""`default_rng([seed, k]).random(width)` for many k at once, bit for bit.

NumPy takes 20 microseconds per member to make a generator, longer than a GPU takes to move the member.  Both parts are
integer arithmetic, done here on arrays: `SeedSequence` (hashes of M. E. O'Neill's seed_seq_fe, 32 bits) and PCG64
(M. E. O'Neill, PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number Generation,
Harvey Mudd College HMC-CS-2014-0905: 128 bits, output XSL-RR).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = tuple[Array, Array]  # 128 bits: high, low

POOL, WORD = 4, 2**32
FIRST_A, FACTOR_A, FIRST_B, FACTOR_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
STEP = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
HALF, LOW = np.uint64(32), np.uint64(WORD - 1)


def uniform(seed: int, first: int, end: int, width: int) -> Array:
    """(end - first, width): row k - first equals `default_rng([seed, k]).random(width)`."""
    rows: list[Array] = []
    for begin in range(first - first % WORD, max(end, 1), WORD):  # k of one word, of two words, ...
        some = np.arange(max(first, begin), min(end, begin + WORD), dtype=np.uint64)
        if len(some):
            rows.append(_drawn(_states(seed, begin // WORD, some), width))
    return np.concatenate(rows) if rows else np.zeros((0, width))


def _words(x: int) -> list[np.uint32]:
    """The digits of x in base 2^32, lowest first."""
    digits = [np.uint32(x % WORD)]
    while x := x // WORD:
        digits.append(np.uint32(x % WORD))
    return digits


class _Hash:
    """A hash whose constant changes with every use."""

    def __init__(self, constant: int, factor: int) -> None:
        self.constant, self.factor = constant, factor

    def __call__(self, x: Array) -> Array:
        before, self.constant = self.constant, self.constant * self.factor % WORD
        x = (x ^ np.uint32(before)) * np.uint32(self.constant)
        return x ^ (x >> np.uint32(16))


def _states(seed: int, high: int, k: Array) -> list[Array]:
    """The four 64-bit words of SeedSequence([seed, k]); `high`: the common part of all k above 32 bits."""
    digits: list[Any] = [*_words(seed), (k & LOW).astype(np.uint32), *(_words(high) if high else [])]
    digits += [np.uint32(0)] * (POOL - len(digits))
    entropy = [np.broadcast_to(x, k.shape) for x in digits]
    hashed = _Hash(FIRST_A, FACTOR_A)
    pool = [hashed(x) for x in entropy[:POOL]]
    sources = [(i, j) for i in range(POOL) for j in range(POOL) if i != j]
    for i, j in sources:
        pool[j] = _mixed(pool[j], hashed(pool[i]))
    for x in entropy[POOL:]:
        for j in range(POOL):
            pool[j] = _mixed(pool[j], hashed(x))
    hashed = _Hash(FIRST_B, FACTOR_B)
    made = [hashed(pool[i % POOL]).astype(np.uint64) for i in range(2 * POOL)]
    return [low | (high << HALF) for low, high in zip(made[::2], made[1::2])]


def _mixed(x: Array, y: Array) -> Array:
    z: Array = LEFT * x - RIGHT * y
    return z ^ (z >> np.uint32(16))


def _drawn(words: list[Array], width: int) -> Array:
    """PCG64 from the words of its state and of its increment, as doubles in [0, 1)."""
    one = np.uint64(1)
    increment = (words[2] << one) | (words[3] >> np.uint64(63)), (words[3] << one) | one
    state = _stepped(_sum(increment, (words[0], words[1])), increment)
    result = np.empty((len(words[0]), width))
    for column in result.T:
        state = _stepped(state, increment)
        x, turn = state[0] ^ state[1], state[0] >> np.uint64(58)
        x = (x >> turn) | (x << (-turn & np.uint64(63)))
        column[:] = (x >> np.uint64(11)) * 2.0**-53
    return result


def _stepped(state: Wide, increment: Wide) -> Wide:
    """state * STEP + increment, modulo 2^128."""
    (high, low), (step_high, step_low) = state, STEP
    a, b, c, d = low >> HALF, low & LOW, step_low >> HALF, step_low & LOW
    middle = a * d + (b * d >> HALF)
    carried = b * c + (middle & LOW)
    product = a * c + (middle >> HALF) + (carried >> HALF) + low * step_high + high * step_low
    return _sum((product, low * step_low), increment)


def _sum(x: Wide, y: Wide) -> Wide:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]), low
