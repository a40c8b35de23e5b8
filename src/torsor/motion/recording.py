"""Trajectory files: append-only, one checksum per chunk, safe against a crash at any moment.

    file    = MAGIC, frame, frame, ...         the first frame is the header (JSON), the others are chunks
    frame   = kind (4 bytes), length (8), blake2b of kind and length (8), blake2b of the payload (16), payload
    chunk   = JSON {"rows": [m, width], "memory": {name: shape, ...}} and a newline, then the numbers, float64

A chunk contains rows (t, q, v, a, tau) and the memory from which the integrator continues after them. A chunk whose
memory has the name `LAST` contains only the last state of a run that keeps fewer rows; it is valid until another chunk
follows. A chunk without rows contains the state of a run that ended between two rows. A chunk is written with one call
and synced to the disk. For this the file is locked, and it must still end where this run left it: if two runs continue
one file, the later one raises an error. A frame cut off by a crash is shorter than its length field says, and is
dropped. A complete frame that fails its checksum is damaged, and this is reported.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import TorsorError
from torsor.files import Locked, locked, read_whole, write_whole
from torsor.validate import file_path

Array = NDArray[Any]
Memory = dict[str, Array]

MAGIC = b"torsor trajectory 1\n"
HEADER, CHUNK = b"HEAD", b"ROWS"
LAST = "last"
PREFIX = 4 + 8 + 8 + 16  # bytes of a frame before its payload
NUMBER = np.dtype("<f8")
MOST_NUMBERS = 2**31  # along an axis: more means damage


class RecordingError(TorsorError):
    """A trajectory file that cannot be written, read or continued; the message says what can still be read."""


@dataclass(frozen=True)
class Chunk:
    """Rows (m, width), and the integrator's memory after the last row."""

    rows: Array
    memory: Memory


@dataclass(frozen=True)
class Recording:
    """The content of a file: its header, its complete chunks and, if it is damaged, a description of the damage."""

    path: Path
    header: dict[str, Any]
    chunks: list[Chunk] = field(repr=False)
    end: int  # bytes before the first damage
    size: int  # bytes of the whole file
    damage: str | None

    @property
    def rows(self) -> Array:
        width = self.header["width"]
        rows = [chunk.rows for chunk in self.chunks[:-1] if LAST not in chunk.memory]
        return np.concatenate([np.empty((0, width)), *rows, *(chunk.rows for chunk in self.chunks[-1:])])


def read(path: str | Path) -> Recording:
    """Read everything up to the first damage, or up to the last complete frame after a crash."""
    path = file_path("path", path)
    content = read_whole(path, RecordingError, magic=MAGIC, kind="torsor trajectory")
    header, chunks, end, damage = None, [], len(MAGIC), None
    try:
        for kind, payload, after in _frames(content):
            if kind == HEADER and header is None:
                header = _header(payload)
            elif kind == CHUNK and header is not None:
                chunks.append(_unpack(payload, header["width"]))
            else:
                raise _Damaged("is out of place")
            end = after
    except _Damaged as damaged:
        damage = f"chunk {len(chunks)} (byte {end} of {len(content)}) {damaged}"
    if header is None:
        raise RecordingError(f"{path} holds no header: it was cut off before the first row, or is damaged")
    return Recording(path, header, chunks, end, len(content), damage)


def sound(path: str | Path, damaged: bool) -> Recording:
    """Read a file; raise an error if it is damaged, unless `damaged` allows it."""
    found = read(path)
    if found.damage and not damaged:
        raise RecordingError(
            f"{path} is damaged: {found.damage}. The {len(found.rows)} rows before are well: load with "
            "damaged=True, or resume the run, which computes the rest again."
        )
    return found


class Recorder:
    """A file to which chunks are appended. It is open only while a chunk is written."""

    def __init__(self, path: Path, end: int, size: int) -> None:
        self.path, self._end, self._size = path, end, size  # bytes of complete chunks, and of the whole file

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any], expected_bytes: int = 0) -> Recorder:
        """Create a file, after checking that it can be written and that the run will fit."""
        path = file_path("path", path)
        part, start = Path(f"{path}.part"), beginning(header)
        if path.exists():
            raise RecordingError(f"{path} exists: resume that run, or choose another name")
        try:
            free = shutil.disk_usage(path.parent).free
            part.write_bytes(b"")
        except OSError as error:
            raise RecordingError(f"{path}: cannot be written ({error.strerror})") from None
        if expected_bytes > free:
            part.unlink()
            raise RecordingError(
                f"{path}: the run needs about {expected_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
                "record fewer rows (a larger dt) or choose another disk"
            )
        recorder = cls(part, 0, 0)
        try:
            recorder._write(start)
            recorder.path = part.rename(path)  # so a file with the final name always has its header
        except (OSError, RecordingError) as error:
            part.unlink(missing_ok=True)
            raise RecordingError(f"{path}: cannot be written ({error})") from None
        return recorder

    @classmethod
    def reopen(cls, recording: Recording) -> Recorder:
        """Continue after the last complete chunk; a damaged rest is kept next to the file, as <name>.damaged."""
        if recording.damage is not None:
            rest = read_whole(recording.path, RecordingError, magic=MAGIC)[recording.end :]
            write_whole(f"{recording.path}.damaged", rest, RecordingError)
        return cls(recording.path, recording.end, recording.size)

    def append(self, rows: Array, memory: Memory) -> None:
        """Write rows, and the memory of the integrator after them."""
        self._write(chunk(rows, memory))

    def _write(self, data: bytes) -> None:
        """Write all of the data to the disk, after the last complete chunk, or nothing."""
        try:
            with open(self.path, "r+b", buffering=0) as file, locked(file):
                self._check_end(file)
                try:
                    self._write_behind(file, data)
                    self._end += len(data)
                except OSError:
                    with suppress(OSError):
                        file.truncate(self._end)
                    raise
                finally:  # also after an interrupt: this run may continue, and then writes the same chunk again
                    self._size = os.fstat(file.fileno()).st_size
        except Locked:
            raise RecordingError(f"{self.path}: another run is writing to it; nothing was written") from None
        except OSError as error:
            raise RecordingError(
                f"{self.path}: cannot be written any further ({error.strerror}); all rows so far are safe. "
                "Make room and resume."
            ) from None

    def _check_end(self, file: IO[bytes]) -> None:
        """Raise if another run has written to the file: its chunks would be lost."""
        size = os.fstat(file.fileno()).st_size
        if size != self._size:
            raise RecordingError(
                f"{self.path}: another run has changed it ({size} bytes instead of {self._size}); nothing was written. "
                "Resume it again to continue from its last row"
            )

    def _write_behind(self, file: IO[bytes], data: bytes) -> None:
        file.truncate(self._end)
        file.seek(self._end)
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


class _Damaged(Exception):
    """A frame is damaged; the message says how."""


def beginning(header: dict[str, Any]) -> bytes:
    """The first bytes of a file."""
    try:
        return MAGIC + _frame(HEADER, json.dumps(header).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(f"about must be words and numbers, as JSON holds them: {error}") from None


def chunk(rows: Array, memory: Memory) -> bytes:
    """A chunk as bytes of the file."""
    return _frame(CHUNK, _pack(rows, memory))


def _frame(kind: bytes, payload: bytes) -> bytes:
    start = kind + len(payload).to_bytes(8, "little")
    return start + _digest(start, 8) + _digest(payload, 16) + payload


def _frames(content: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(kind, payload, offset of the next frame) of each complete frame."""
    at = len(MAGIC)
    while at + PREFIX <= len(content):
        start, start_digest, digest = (
            content[at : at + 12],
            content[at + 12 : at + 20],
            content[at + 20 : at + PREFIX],
        )
        if _digest(start, 8) != start_digest:
            raise _Damaged("has a damaged beginning")
        at, length = at + PREFIX, int.from_bytes(start[4:], "little")
        payload = content[at : at + length]
        if len(payload) < length:
            return  # cut off while it was written
        if _digest(payload, 16) != digest:
            raise _Damaged("fails its checksum")
        at += length
        yield start[:4], payload, at


def _digest(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _pack(rows: Array, memory: Memory) -> bytes:
    shapes = {"rows": rows.shape, "memory": {name: x.shape for name, x in memory.items()}}
    numbers = [np.ascontiguousarray(x, dtype=NUMBER).tobytes() for x in (rows, *memory.values())]
    return b"".join([json.dumps(shapes).encode(), b"\n", *numbers])


def _header(payload: bytes) -> dict[str, Any]:
    header = _json(payload)
    kinds = {"model": str, "model_key": str, "width": int, "about": dict}
    if not all(isinstance(header.get(key), kind) for key, kind in kinds.items()):
        raise _Damaged(f"does not hold {', '.join(kinds)}")
    if not 0 < header["width"] < MOST_NUMBERS:
        raise _Damaged("has no width")
    return header


def _unpack(payload: bytes, width: int) -> Chunk:
    line, _, numbers = payload.partition(b"\n")
    words = _json(line)
    memory = words.get("memory")
    if not isinstance(memory, dict) or len(numbers) % NUMBER.itemsize:
        raise _Damaged("does not hold rows and a memory")
    shapes = [words.get("rows"), *memory.values()]
    if not all(_is_shape(shape) for shape in shapes) or shapes[0][1:] != [width]:
        raise _Damaged("has a wrong shape")
    x, arrays = np.frombuffer(numbers, dtype=NUMBER), []
    if sum(map(prod, shapes)) != len(x):
        raise _Damaged("has not as many numbers as its shapes say")
    for shape in shapes:
        arrays.append(x[: prod(shape)].reshape(shape))
        x = x[prod(shape) :]
    return Chunk(arrays[0], dict(zip(memory, arrays[1:])))


def _json(text: bytes) -> dict[str, Any]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        raise _Damaged("is not JSON") from None
    if not isinstance(words, dict):
        raise _Damaged("is not a JSON object")
    return words


def _is_shape(x: Any) -> bool:
    return isinstance(x, list) and len(x) <= 2 and all(type(k) is int and 0 <= k < MOST_NUMBERS for k in x)
