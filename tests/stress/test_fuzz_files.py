"""Files cut, flipped, spliced and swollen at random: what is read is a valid object or a TorsorError.

As a script, `python test_fuzz_files.py FIRST COUNT` tries many inputs under a limit of memory and prints the failures.
"""

import json
import os
import random
import signal
import sys
import tempfile
import tracemalloc
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import processes
import pytest

import torsor as ts
from torsor import Simulation, Trajectory, load, simulate, zoo
from torsor.errors import ModelError, TorsorError
from torsor.formats import binary, toml
from torsor.model import Model
from torsor.motion import recording

TESTS = str(Path(__file__).parents[1])
pytestmark = processes.posix  # alarms
SECONDS = 20  # for one input; one takes about a millisecond
MEMORY = 3 << 30  # bytes of address space for the many; torsor, NumPy and LLVM take about one GB of it
# What a reader may hold at a time, in times the size of its file, and beside that: sizes are checked before allocation.
AMPLIFICATION, OVERHEAD = 300, 20_000_000

INTEGERS = [b"0", b"-1", b"255", b"256", b"4294967296", b"9223372036854775808", b"1" * 30, b"7" * 5000]
NUMBERS = [*INTEGERS, b"nan", b"inf", b"-inf", b"1e308", b"1e999", b"-0.0", b"1e-320", b"true", b'"x"', b"[]", b"{}"]
WORDS = [
    b"\xff",
    b"\x00",
    b"\xed\xa0\x80",
    b"'''",
    b'"""',
    b"\r",
    b"[[body]]",
    b"[bodies]",
    b"[dh]",
    b"null",
    b"=",
    b",",
]
NESTS = [b"[", b"{", b"{a=", b'{"a":', b"a.", b"(", b"[["]


# ---- inputs ----


@cache
def originals() -> dict[str, bytes]:
    """Sound files, by what reads them."""
    tree = zoo.random_tree(4, 3).with_frames({"tip": ("link2", np.eye(3), (0.0, -0.0, 1.0))})
    columns = toml.encode(zoo.random_tree(1001, 1))
    run = simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.3, dt=0.1)
    rows = np.column_stack([run.t, run.q, run.v, run.a, run.tau])
    start = recording.beginning(
        {"model": toml.write(run.model), "model_key": run.model.key, "width": 9, "about": run.about}
    )
    memory = {"t": run.t[-1:], "row": rows[-1, 1:7], "h": np.array([0.01]), "next": np.array([4.0])}
    chunks = recording.chunk(rows[:2], memory) + recording.chunk(rows[2:], memory)
    return {
        "toml": toml.encode(tree),
        "columns": columns[:2000] + columns[-2000:],
        "small columns": small_columns(),
        "dh": b'[dh]\nlink = [{ name = "a", a = 0.3, mass = 1, inertia = [1, 1, 1] }, { name = "b", mass = 1,'
        b" r = [1, 0, 0], inertia = [1, 0, 0, 1, 0, 1] }]\n",
        "binary": binary.encode(tree),
        "trajectory": start + chunks,
    }


def small_columns() -> bytes:
    """The column form of a small model, which torsor itself writes only for large ones."""
    most = toml.MOST_TABLES
    toml.MOST_TABLES = 0
    try:
        return toml.encode(zoo.random_tree(5, 2).with_frames({"tip": (None, np.eye(3), (1.0, 2.0, 3.0))}))
    finally:
        toml.MOST_TABLES = most


def mutated(rng: random.Random, kind: str) -> bytes:
    """A damaged file; what has checksums often gets them made anew, or nothing behind them would ever be tried."""
    content = originals()[kind]
    if kind == "binary" and rng.random() < 0.8:
        inner = changed(rng, content[: -binary.DIGEST])
        return inner + binary._digest(inner)
    if kind == "trajectory" and rng.random() < 0.8:
        return recording.MAGIC + b"".join(
            recording._frame(word, changed(rng, payload) if rng.random() < 0.5 else payload)
            for word, payload, _ in recording._frames(content)
        )
    return changed(rng, content)


def changed(rng: random.Random, content: bytes) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        content = rng.choice(CHANGES)(rng, content)
    return content


def place(rng, content):
    return rng.randrange(len(content) + 1)


def piece(rng, content):
    start = place(rng, content)
    return slice(start, min(len(content), start + rng.choice([1, 4, 30, 300, 3000])))


def truncate(rng, content):
    return content[: place(rng, content)]


def flip(rng, content):
    copy = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20])):
        if copy:
            copy[rng.randrange(len(copy))] ^= 1 << rng.randrange(8)
    return bytes(copy)


def insert(rng, content):
    at = place(rng, content)
    return content[:at] + rng.choice([rng.randbytes(rng.choice([1, 8, 100])), *WORDS, *NUMBERS]) + content[at:]


def duplicate(rng, content):
    at, part = place(rng, content), content[piece(rng, content)]
    return content[:at] + part * rng.choice([1, 1, 2, 50]) + content[at:]


def remove(rng, content):
    part = piece(rng, content)
    return content[: part.start] + content[part.stop :]


def splice(rng, content):
    other = rng.choice(list(originals().values()))
    at = place(rng, content)
    return content[:at] + other[piece(rng, other)] + content[at + rng.choice([0, 10, 300]) :]


def renumber(rng, content):
    """Another number in place of one."""
    digits = [i for i in range(len(content)) if content[i : i + 1].isdigit()]
    if not digits:
        return content
    start = rng.choice(digits)
    stop = start
    while stop < len(content) and content[stop : stop + 1] in b"0123456789.e-":
        stop += 1
    return content[:start] + rng.choice(NUMBERS) + content[stop:]


def nest(rng, content):
    at = place(rng, content)
    return content[:at] + rng.choice(NESTS) * rng.choice([10, 500, 5000]) + content[at:]


CHANGES = [truncate, flip, flip, insert, duplicate, remove, splice, renumber, renumber, nest]


# ---- readers ----


def read_model(decode, encode, content):
    """Read; what comes out comes back from its own file."""
    model = decode(content, "file")
    assert decode(encode(model), "again") == model


def read_trajectory(content: bytes, folder: Path) -> None:
    path = folder / "run.traj"
    path.write_bytes(content)
    run = Trajectory.load(path, damaged=True)
    assert len(run) == 0 or np.isfinite(run.at(run.t[0])[0]).all()
    if run.model.key == zoo.point_chain(2).key and run.model.names == zoo.point_chain(2).names:  # compiled already
        Simulation.resume(path).step()


def attempt(kind: str, content: bytes, folder: Path) -> str | None:
    """What went wrong, if anything did."""
    try:
        if kind == "binary":
            read_model(binary.decode, binary.encode, content)
        elif kind == "trajectory":
            read_trajectory(content, folder)
        else:
            read_model(toml.decode, toml.encode, content)
    except TorsorError as error:
        if len(str(error)) > 2000:
            return f"a message of {len(str(error))} characters"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def alarm(seconds: int):
    def ring(*_):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(kind: str, first: int, count: int, folder: Path) -> list[str]:
    """The seeds whose inputs bring out anything but an object or a TorsorError."""
    found = []
    for seed in range(first, first + count):
        content = mutated(random.Random(f"{kind} {seed}"), kind)
        with alarm(SECONDS):
            wrong = attempt(kind, content, folder)
        if wrong:
            found.append(f"{kind} {seed}: {wrong}")
    return found


# ---- tests ----

KINDS = ("toml", "columns", "small columns", "dh", "binary", "trajectory")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused(kind, tmp_path):
    assert fuzz(kind, 0, 300, tmp_path) == []


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files_under_a_limit_of_memory():
    words = "-W", "error", __file__, 1000, 100_000 // len(KINDS) + 1
    env = processes.environment(PYTHONPATH=TESTS, OPENBLAS_NUM_THREADS="1")
    done = processes.run(*words, env=env, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_files_are_read(kind, tmp_path):
    if kind != "columns":  # its middle was cut out
        attempted = attempt(kind, originals()[kind], tmp_path)
        assert attempted is None


def signed(words: dict, columns: bytes = b"") -> bytes:
    """A binary model file with a sound checksum."""
    text = json.dumps(words).encode()
    content = binary.MAGIC + len(text).to_bytes(8, "little") + text + columns
    return content + binary._digest(content)


SOUND = {"name": "m", "allow_degenerate": False, "names": None, "frames": []}
ROWS = [1] * len(binary.BODIES) + [1, 0, 0, 0]
BOMBS = {
    "rows without end": ("bomb.torsor", signed(SOUND | {"rows": [10**12] * len(ROWS)})),
    "one long column": ("bomb.torsor", signed(SOUND | {"rows": [10**9, *ROWS[1:]]}, bytes(300))),
    "rows of 4000 digits": ("bomb.torsor", signed(SOUND | {"rows": [10**4000] * len(ROWS)})),
    "words longer than the file": ("bomb.torsor", binary.MAGIC + (2**63).to_bytes(8, "little") + bytes(99)),
    "brackets": ("bomb.toml", b"a = " + b"[" * 100_000),
    "braces": ("bomb.toml", b"a = " + b"{a=" * 100_000),
    "dots": ("bomb.toml", b"a." * 100_000 + b"a = 1\n"),
    "digits": ("bomb.toml", b"a = " + b"1" * 100_000),
    "no UTF-8": ("bomb.toml", b'name = "\xff"\n'),
    "a parent for every body": (
        "bomb.toml",
        b'[bodies]\nparent = "' + b"-1 " * 50_000 + b'"\nmass = 1\ninertia = [1, 1, 1]',
    ),
    "a shape without end": ("bomb.traj", None),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_never_takes_much_memory(name, tmp_path):
    file, content = BOMBS[name]
    if content is None:
        huge = json.dumps({"rows": [2**30, 9], "memory": {}}).encode() + b"\n"
        head = originals()["trajectory"].split(b"ROWS")[0]
        content = head + recording._frame(recording.CHUNK, huge)
    path = tmp_path / file
    path.write_bytes(content)
    reader = Trajectory.load if path.suffix == ".traj" else load
    tracemalloc.start()
    try:
        try:
            reader(path)
            message = file
        except TorsorError as error:
            message = str(error)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < AMPLIFICATION * len(content) + OVERHEAD
    assert file in message
    assert len(message) < 2000


def save_model(folder):
    ts.save(zoo.panda(), folder / "arm.toml")


def save_binary(folder):
    ts.save(zoo.panda(), folder / "arm.torsor")


def run_of_two_links():
    return simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.1)


WRITERS = {
    "toml": save_model,
    "binary": save_binary,
    "trajectory": lambda folder: run_of_two_links().save(folder / "run.traj"),
    "csv": lambda folder: run_of_two_links().to_csv(folder / "run.csv"),
    "parquet": lambda folder: run_of_two_links().to_parquet(folder / "run.parquet"),
    "page": lambda folder: run_of_two_links().view(folder / "run.html"),
    "plot": lambda folder: run_of_two_links().plot(folder / "run.png"),
    "record": lambda folder: simulate(zoo.point_chain(2), duration=0.1, file=folder / "run.traj"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_nothing_half_written(writer, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    WRITERS[writer](tmp_path)
    written = {path: path.read_bytes() for path in tmp_path.iterdir()}
    folder = tmp_path / "full"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TorsorError, match="No space left"):
        WRITERS[writer](folder)
    assert list(folder.iterdir()) == []
    assert len(written) == 1


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "arm.toml"
    save_model(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(toml, "encode", lambda *args: (_ for _ in ()).throw(ModelError("no")))
    with pytest.raises(ModelError):
        ts.save(Model.chain(mass=1.0, inertia=(1, 1, 1)), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["arm.toml"]


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    originals()  # compiles what resuming needs before the limit
    with tempfile.TemporaryDirectory() as name:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        wrong = [line for kind in KINDS for line in fuzz(kind, first, count, Path(name))]
    print("\n".join(wrong))
    sys.exit(bool(wrong))
