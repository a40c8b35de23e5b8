"""Files are written completely or not at all, and every failure is a TorsorError that names the file."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from platform import python_version
from typing import IO, Any

import numpy as np

from torsor import __version__
from torsor.errors import ArgumentError, TorsorError
from torsor.validate import file_path, memory

FEW = 100  # the longest list in the comments of a file
BEYOND = 2**40  # where Windows locks a byte: others may read what is before it
MOST_BYTES = 2**30  # of a text file
MOST_STREAMED, BLOCK = 64 * 2**20, 2**20  # bytes of a pipe or a device, whose size is unknown


def made() -> dict[str, str]:
    """Which torsor wrote a file, on which Python and NumPy, and when."""
    versions = {"torsor": __version__, "python": python_version(), "numpy": np.__version__}
    return versions | {"date": datetime.now(UTC).isoformat(timespec="seconds")}


def digest(numbers: Any) -> str:
    """A short hash of an array."""
    return blake2b(np.ascontiguousarray(numbers).tobytes(), digest_size=16).hexdigest()


def short(about: dict[str, Any]) -> dict[str, Any]:
    """The options that made a file, without long lists."""
    return {
        key: short(x) if isinstance(x, dict) else f"{len(x)} numbers" if isinstance(x, list) and len(x) > FEW else x
        for key, x in about.items()
    }


def signature(about: dict[str, Any] | None = None) -> str:
    """One line of JSON for the comments or metadata of a file: which torsor wrote it, when, and with which options."""
    maker = made()
    return json.dumps(maker | short(about or {}) | maker, default=str)


def check_writable(path: Any) -> None:
    """Raise now, before a long run, if a file could not be written after it."""
    path = file_path("path", path)
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        reason = "it is a folder"
    elif path.exists() and not os.access(path, os.W_OK):
        reason = "no permission"
    elif not path.exists() and not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not path.exists() and not os.access(folder, os.W_OK):
        reason = f"no permission to write in {folder}"
    else:
        return
    raise ArgumentError(f"{path}: cannot be written ({reason})")


def write_whole(path: Any, content: bytes | memoryview, error: type[TorsorError] = ArgumentError) -> Path:
    """Write a temporary file and rename it, so that a failure leaves the old file unchanged and no new one."""
    path = file_path("path", path)
    try:
        if path.exists() and not path.is_file():  # a pipe or a terminal cannot be replaced
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as reason:
        raise error(f"{path}: cannot be written ({reason.strerror or reason})") from None
    return path


def _replace(path: Path, content: bytes | memoryview) -> None:
    aside = path.with_name(f".torsor-{os.getpid()}-{threading.get_ident()}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


class Locked(Exception):
    """Another process holds the lock of a file."""


@contextmanager
def locked(file: IO[bytes]) -> Iterator[None]:
    """Hold the lock of an open file, or raise `Locked`; the system frees the lock when the process ends in any way.

    If the system or the file system has no locks, nothing is locked.
    """
    release = _lock(file)
    try:
        yield
    finally:
        release()


def _lock(file: IO[bytes]) -> Callable[[], Any]:
    """Lock a file, and return the function that unlocks it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(BEYOND)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return lambda: (file.seek(BEYOND), msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1))
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lambda: fcntl.flock(file, fcntl.LOCK_UN)
    except (BlockingIOError, PermissionError):
        raise Locked from None
    except (ImportError, OSError):
        return lambda: None


def read_whole(path: Any, error: type[TorsorError] = ArgumentError, *, magic: bytes = b"", kind: str = "",
               most: int = MOST_BYTES) -> bytes:  # fmt: skip
    """The content of a file of at most `most` bytes that begins with `magic`; other files are refused unread.

    A file that begins with a non-empty magic may be as large as the memory.
    """
    path = file_path("path", path)
    try:
        with open(path, "rb") as file:
            if (start := file.read(len(magic))) != magic:
                raise error(f"{path}: this is not a {kind}")
            found = os.fstat(file.fileno())
            most = memory() if magic else most
            if stat.S_ISREG(found.st_mode):
                content = start + file.read() if found.st_size <= most else None
            else:
                content = _read_stream(file, min(most, MOST_STREAMED))
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror or reason})") from None
    if content is None:
        raise error(f"{path}: too large; at most {most / 1e6:.3g} MB are read")
    return content


def _read_stream(file: Any, most: int) -> bytes | None:
    """The content of a pipe or a device; None if it is more than `most` bytes."""
    blocks, size = [], 0
    while block := file.read(BLOCK):
        blocks.append(block)
        size += len(block)
        if size > most:
            return None
    return b"".join(blocks)
