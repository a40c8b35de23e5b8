"""Robot files, damaged at random: a model or a TorsorError, quickly; never another exception."""

import random
import time
import warnings
from pathlib import Path

import pytest

import torsor as ts
from torsor.errors import TorsorError

ROBOTS = Path(__file__).parent.parent / "robots"
WORDS = [
    b"nan", b"inf", b"-1", b"1e400", b"", b"0 0", b"\xff", b"<", b">", b'"', b"&amp;", b"&x;", b"world", b"base",
    b"free", b"<link name='x'/>", b"</joint>", b"1e-320", b"99999999999999999999", b"\x00",
    b"relative_to='tool'", b"fixed",
]  # fmt: skip


def damaged(content, rng):
    """One to four changes: bytes dropped, doubled, swapped or replaced by words that files hold."""
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(content)) for _ in range(2))
        j = min(j, i + rng.choice([1, 3, 20, 200]))
        part = content[i:j]
        word = rng.choice(WORDS)
        content = content[:i] + rng.choice([b"", part + part, part[::-1], word, part + word]) + content[j:]
        if rng.random() < 0.5:  # another value of some attribute
            quotes = [k for k, byte in enumerate(content) if byte == ord('"')]
            if len(quotes) > 3:
                k = rng.randrange(0, len(quotes) - 1)
                content = content[: quotes[k] + 1] + word + content[quotes[k + 1] :]
    return content


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("features.urdf", 300), ("features.sdf", 300), ("features.xml", 100),
        *(pytest.param(f"features.{x}", 5000, marks=pytest.mark.slow) for x in ("urdf", "sdf", "xml")),
    ],
)  # fmt: skip
def test_damaged_files_load_or_are_refused(tmp_path, name, count):
    rng, content, loaded = random.Random(name + str(count)), (ROBOTS / name).read_bytes(), 0
    path = tmp_path / name
    for _ in range(count):
        path.write_bytes(damaged(content, rng))
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded += ts.load(path).n > 0
        except TorsorError:
            pass
        assert time.perf_counter() - began < 5
    assert 0 < loaded < count
