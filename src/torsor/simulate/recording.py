"""Trajectory files: append-only, a checksum a chunk, safe against a crash at any moment.

    file    = MAGIC, frame, frame, ...         the first frame is the header (JSON), the others are chunks
    frame   = kind (4 bytes), length (8), blake2b of kind and length (8), blake2b of the payload (16), payload
    chunk   = JSON {"rows": [m, width], "memory": {name: shape, ...}} and a newline, then the numbers, float64

A chunk holds rows (t, q, v, a, tau) and the memory from which the integrator goes on after them. It is
written with one call and synced to the disk; what a crash cuts off is shorter than its frame says and is
dropped. A frame that is whole but fails its checksum is damage, and is reported.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import TorsorError

Array = NDArray[Any]
Memory = dict[str, Array]

MAGIC = b"torsor trajectory 1\n"
HEADER, CHUNK = b"HEAD", b"ROWS"
PREFIX = 4 + 8 + 8 + 16  # bytes of a frame before its payload
NUMBER = np.dtype("<f8")


class RecordingError(TorsorError):
    """A trajectory file that cannot be written, read or continued; the message says what is still there."""


@dataclass(frozen=True)
class Chunk:
    """Rows (m, width), and the integrator's memory after the last one."""

    rows: Array
    memory: Memory


@dataclass(frozen=True)
class Recording:
    """What a file holds: its header, its whole chunks, and where and how it is damaged, if it is."""

    path: Path
    header: dict[str, Any]
    chunks: list[Chunk] = field(repr=False)
    end: int  # bytes up to which all is well
    damage: str | None

    @property
    def rows(self) -> Array:
        width = self.header["width"]
        return np.concatenate([np.empty((0, width)), *(chunk.rows for chunk in self.chunks)])


def read(path: str | Path) -> Recording:
    """Everything up to the first damage, or to the end that a crash has left."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read ({error.strerror})") from None
    if not content.startswith(MAGIC):
        raise RecordingError(f"{path} is not a torsor trajectory")
    header, chunks, end, damage = None, [], len(MAGIC), None
    try:
        for kind, payload, after in _frames(content):
            if kind == HEADER:
                header = json.loads(payload)
            else:
                chunks.append(_unpack(payload))
            end = after
    except _Damaged as damaged:
        damage = f"chunk {len(chunks)} (byte {end} of {len(content)}) {damaged}"
    if header is None:
        raise RecordingError(f"{path} holds no header: it was cut off before the first row, or is damaged")
    return Recording(path, header, chunks, end, damage)


class Recorder:
    """A file to which chunks are appended. It is open only while a chunk is written."""

    def __init__(self, path: Path, end: int) -> None:
        self.path, self._end = path, end

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any], expected_bytes: int = 0) -> Recorder:
        """A new file, after a look at whether it can be written and the run will fit."""
        path, part = Path(path), Path(f"{path}.part")
        if path.exists():
            raise RecordingError(f"{path} exists: resume that run, or choose another name")
        try:
            free = shutil.disk_usage(path.parent).free
            part.touch()
        except OSError as error:
            raise RecordingError(f"{path}: cannot be written ({error.strerror})") from None
        if expected_bytes > free:
            part.unlink()
            raise RecordingError(
                f"{path}: the run needs about {expected_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
                "record fewer rows (a larger dt) or choose another disk"
            )
        recorder = cls(part, 0)
        recorder._write(MAGIC + _frame(HEADER, json.dumps(header).encode()))
        recorder.path = part.rename(path)  # a file of this name always has its header
        return recorder

    @classmethod
    def reopen(cls, recording: Recording) -> Recorder:
        """Go on after the last whole chunk; a damaged rest is kept beside the file, as <name>.damaged."""
        if recording.damage is not None:
            rest = recording.path.read_bytes()[recording.end :]
            Path(f"{recording.path}.damaged").write_bytes(rest)
        return cls(recording.path, recording.end)

    def append(self, rows: Array, memory: Memory) -> None:
        self._write(_frame(CHUNK, _pack(rows, memory)))

    def _write(self, data: bytes) -> None:
        """All of it, on the disk, after the last whole chunk; or nothing."""
        try:
            with open(self.path, "r+b", buffering=0) as file:
                file.truncate(self._end)
                file.seek(self._end)
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._end)
            raise RecordingError(
                f"{self.path}: cannot be written any further ({error.strerror}); all rows so far are safe. "
                "Make room and resume."
            ) from None
        self._end += len(data)


class _Damaged(Exception):
    pass


def _frame(kind: bytes, payload: bytes) -> bytes:
    start = kind + len(payload).to_bytes(8, "little")
    return start + _digest(start, 8) + _digest(payload, 16) + payload


def _frames(content: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(kind, payload, where the next frame begins) of each whole frame."""
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


def _unpack(payload: bytes) -> Chunk:
    line, numbers = payload.split(b"\n", 1)
    shapes = json.loads(line)
    x, arrays = np.frombuffer(numbers, dtype=NUMBER), []
    for shape in (shapes["rows"], *shapes["memory"].values()):
        arrays.append(x[: prod(shape)].reshape(shape))
        x = x[prod(shape) :]
    return Chunk(arrays[0], dict(zip(shapes["memory"], arrays[1:])))
