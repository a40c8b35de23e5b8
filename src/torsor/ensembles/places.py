"""The place of a store: a folder on this computer, or anything that fsspec reaches (S3 and others).

A file of a store exists completely or not at all.  In a folder it is written to a temporary file, synced and renamed;
object stores guarantee it for every object.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from torsor.errors import ArgumentError, TorsorError
from torsor.files import write_whole
from torsor.validate import file_path

Content = bytes | memoryview


class StoreError(TorsorError):
    """A store that cannot be read or written, or that belongs to another study."""


class StorePlace(Protocol):
    """Files by name, with / between folders; `address` identifies the place, also in another process."""

    address: str

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it does not exist."""

    def write(self, name: str, content: Content) -> None: ...

    def create(self, files: Mapping[str, Content]) -> None:
        """Write the first files of a store; the last of them marks that it exists.  If another process was faster, its
        store stays."""


class Folder:
    """A folder on this computer."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.address = str(self.path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as reason:
            raise StoreError(f"{self.path / name}: cannot be read ({reason.strerror})") from None

    def write(self, name: str, content: Content) -> None:
        file = self.path / name
        _folder(file.parent)
        write_whole(file, content, StoreError)

    def create(self, files: Mapping[str, Content]) -> None:
        """Write all at once: a temporary folder is renamed, which fails if the store already exists."""
        _folder(self.path.parent)
        aside = Folder(self.path.with_name(f".{self.path.name}-{uuid4().hex}.part"))
        try:
            for name, content in files.items():
                aside.write(name, content)
            os.rename(aside.path, self.path)
        except OSError as reason:
            if self.read(list(files)[-1]) is None:
                raise StoreError(f"{self.path}: cannot be made ({reason.strerror})") from None
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)


class Remote:
    """A place behind fsspec."""

    def __init__(self, files: Any, root: str, address: str) -> None:
        self.files, self.root, self.address = files, root, address

    def read(self, name: str) -> bytes | None:
        try:
            return self.files.cat_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return None
        except Exception as reason:  # every library behind fsspec has its own errors
            raise StoreError(f"{self.address}/{name}: cannot be read ({reason})") from None

    def write(self, name: str, content: Content) -> None:
        try:
            self.files.pipe_file(f"{self.root}/{name}", bytes(content))
        except Exception as reason:
            raise StoreError(f"{self.address}/{name}: cannot be written ({reason})") from None

    def create(self, files: Mapping[str, Content]) -> None:
        for name, content in files.items():
            self.write(name, content)


def at(address: Any) -> StorePlace:
    """The place of an address: a path, or a URL as fsspec understands it."""
    if "://" not in str(address):
        return Folder(file_path("store", address))
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ArgumentError(f"{address}: stores that are not folders need fsspec: pip install fsspec") from None
    try:
        files, root = url_to_fs(str(address))
    except Exception as reason:  # an unknown kind of address, a library that is missing, credentials
        raise StoreError(f"{address}: cannot be reached ({reason})") from None
    if "file" in (files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)):
        return Folder(Path(root))
    return Remote(files, root.rstrip("/"), str(address).rstrip("/"))


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(f"{path}: cannot be made ({reason.strerror})") from None
