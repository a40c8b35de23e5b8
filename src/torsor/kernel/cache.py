"""What is kept on disk between runs: machine code, and small answers that take a while to find.

One file each, under a name that says what it was made from; a checksum goes before the content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def name_of(*parts: object) -> str:
    """The name of what is made from these."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


def folder() -> Path | None:
    """Where it is kept, or None with TORSOR_CACHE=off.  TORSOR_CACHE may also name a folder; one that cannot be, such
    as that of an unknown user, means no cache.
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


def read(name: str) -> bytes | None:
    """The content of that name, if it is there and whole."""
    where = folder()
    if where is None:
        return None
    try:
        stored = (where / name).read_bytes()
    except OSError:
        return None
    checksum, content = stored[:20], stored[20:]
    return content if content and hashlib.sha1(content, usedforsecurity=False).digest() == checksum else None


def write(name: str, content: bytes) -> None:
    """Whole or not at all: written aside and renamed, so that no reader ever sees half a file."""
    where = folder()
    if where is None:
        return
    with contextlib.suppress(OSError):  # a cache that cannot be written is a slower start, nothing more
        where.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it will be run
        aside = where / f"{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            aside.write_bytes(hashlib.sha1(content, usedforsecurity=False).digest() + content)
            os.replace(aside, where / name)
        finally:
            aside.unlink(missing_ok=True)


def remembered(key: str, find: Callable[[], str]) -> str:
    """A short text that takes a while to find."""
    name = name_of("text", key)
    kept = read(name)
    if kept is None:
        kept = find().encode()
        write(name, kept)
    return kept.decode()


# Answers and code are good as long as the sources they came from are the same ------------------------------------


def _contents(*folders: str) -> str:
    """Changes whenever a source in one of these folders of the package does."""
    files = [f for folder in folders for f in sorted((PACKAGE / folder).glob("*.py"))]
    return name_of([(f.name, f.read_bytes()) for f in files] or os.urandom(20))  # without sources nobody can tell


# Read when torsor is imported (which imports this first): the sources as they were then are those that run, whatever
# is installed over them later.
SOURCES = _contents("", "algorithms", "kernel", "model")
WRITERS = _contents("kernel")  # those that decide what a tape becomes
