"""The disk cache: machine code, and small results that take a while to compute.

Each is one file, whose name is a hash of its inputs.  A checksum of the name and the content precedes the
content, so that no file is mistaken for another.  The least recently used files are deleted when the total size
exceeds `LIMIT`.

The content is run as machine code: a folder or a file that somebody else could have written is not used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
# For an installed package the times and inodes of its files identify the content, which is slow to read from a cold
# disk.  In a checkout they change with every change of branch.
INSTALLED = PACKAGE.parent.name in ("site-packages", "dist-packages")
CHECKSUM_BYTES = 20
LIMIT = 256 << 20  # bytes of all files together; a kernel takes 10 to 200 KB
WRITES_PER_TRIM = 64  # listing all files takes a few milliseconds
USE_NOTED = 86400.0  # seconds: a use is recorded once per day
_OURS = re.compile(r"(launch-)?[0-9a-f]{32,40}(\.\d+\.\d+)?$")  # the names of our files, including temporary ones
_writes = itertools.count()


def name_of(*parts: object) -> str:
    """The name of the file for an object made from these parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


def folder() -> Path | None:
    """The folder of the cache, or None with TORSOR_CACHE=off.

    TORSOR_CACHE may also name a folder; if that folder is impossible, such as that of an unknown user, there is no
    cache.
    """
    setting = os.environ.get("TORSOR_CACHE", "")
    if setting.lower() in ("off", "0", "no", "none", "false"):
        return None
    if setting:
        return _expanded(Path(setting))
    if sys.platform == "darwin":
        home = Path("~/Library/Caches")
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return _expanded(home / "torsor")


def _expanded(path: Path) -> Path | None:
    try:
        return path.expanduser()
    except RuntimeError:  # no home, or no such user
        return None


def _own(status: os.stat_result) -> bool:
    """Whether only this user and root can have written a file, or can write in a folder."""
    if not hasattr(os, "geteuid"):  # Windows: the folders of a user are their own
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _usable() -> Path | None:
    """The folder, if there may be a cache: torsor's sources can be read, and nobody else can write in the folder."""
    where = folder()
    if where is None or not _IMPORTED:
        return None
    with contextlib.suppress(OSError):  # the folder is missing, or cannot be made
        if not _own(os.stat(where)):
            _warn_once(
                f"torsor does without its cache: others own {where} or can write in it, and what is there is run. Make "
                "it yours (chmod go-w), or let TORSOR_CACHE name another folder, or be off"
            )
            return None
    return where


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def read(name: str) -> bytes | None:
    """The content under a name, if it exists, is intact and nobody else can have written it; else None."""
    where = _usable()
    if where is None:
        return None
    try:
        with (where / name).open("rb") as file:
            status = os.fstat(file.fileno())
            stored = file.read() if _own(status) else b""
        if time.time() - status.st_mtime > USE_NOTED:
            os.utime(where / name)
    except OSError:
        return None
    checksum, content = stored[:CHECKSUM_BYTES], stored[CHECKSUM_BYTES:]
    return content if content and _checksum(name, content) == checksum else None


def write(name: str, content: bytes) -> None:
    """Write a temporary file and rename it, so that a reader never sees half a file."""
    where = _usable()
    if where is None or not unchanged():
        return
    with contextlib.suppress(OSError):  # a cache that cannot be written only slows the next start
        where.mkdir(mode=0o700, parents=True, exist_ok=True)  # its content will be executed
        aside = where / f"{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_checksum(name, content) + content)
            os.replace(aside, where / name)
        finally:
            aside.unlink(missing_ok=True)
        if next(_writes) % WRITES_PER_TRIM == 0:
            trim(LIMIT)


def _checksum(name: str, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES, key=name.encode()[:64]).digest()


def entries() -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of every file, least recently used first."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder() or ""):
            with contextlib.suppress(OSError):  # another process may delete it meanwhile
                if entry.is_file(follow_symlinks=False) and _OURS.match(entry.name):
                    status = entry.stat()
                    found.append((status.st_mtime, status.st_size, Path(entry.path)))
    return sorted(found)


def trim(limit: int) -> int:
    """Delete the least recently used files until the others take at most `limit` bytes; returns the number deleted."""
    files = entries()
    excess, deleted = sum(size for _, size, _ in files) - limit, 0
    for _, size, path in files:
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            excess, deleted = excess - size, deleted + 1
    return deleted


def remembered(key: str, find: Callable[[], str]) -> str:
    """A short text that takes a while to compute: from the cache, or computed by `find` and stored."""
    name = name_of("text", key)
    kept = read(name)
    if kept is None:
        kept = find().encode()
        write(name, kept)
    return kept.decode()


# Results and code are valid while the sources that made them are unchanged ---------------------------------------


def _state_of_files() -> dict[str, tuple[int, ...]]:
    """The source files that results and code depend on, with data that change when a file is written."""
    found = {}
    for folder in ("", "algorithms", "backends", "compiler", "dynamics", "model", "motion", "parallel"):
        with contextlib.suppress(OSError), os.scandir(PACKAGE / folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    at = entry.stat()
                    found[f"{folder}/{entry.name}"] = at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns
    return dict(sorted(found.items()))


# Taken when torsor is imported, which imports this first.  Other modules are imported later, on first use: results are
# stored on disk only while all sources are still those of that moment.
_IMPORTED = _state_of_files()


def unchanged() -> bool:
    """Whether the sources are those from when torsor was imported; another version may be installed over them."""
    return bool(_IMPORTED) and _state_of_files() == _IMPORTED


@lru_cache(maxsize=2)
def sources(*folders: str) -> str:
    """A hash of the sources in these folders of the package (none: all); without sources a new one in every process."""
    digest = hashlib.blake2b(digest_size=20)
    for name in _IMPORTED:
        if not folders or name.partition("/")[0] in folders:
            state = repr(_IMPORTED[name]).encode() if INSTALLED else (PACKAGE / name.lstrip("/")).read_bytes()
            digest.update(name.encode() + b"\0" + state)
    return digest.hexdigest() if unchanged() else os.urandom(20).hex()


def writers() -> str:
    """A hash of the sources that determine the code of a tape."""
    return sources("backends", "compiler")
