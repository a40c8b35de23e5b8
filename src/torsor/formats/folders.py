"""Where the meshes and other files are that a robot file names.

A file may name what lies in its own folder, in folders up to `LEVELS` above it, in the folders the caller gives, and in
the packages of ROS_PACKAGE_PATH and AMENT_PREFIX_PATH.  Everything else is out of bounds: a robot file from a stranger
reads no other file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from torsor.validate import file_path

LEVELS = 5
SCHEMES = ("package://", "model://")


class Folders:
    """Finds the files that one robot file names."""

    def __init__(self, path: str | Path, given: Sequence[str | Path] = ()):
        self.home = Path(os.path.abspath(path)).parent
        above = [self.home, *self.home.parents][: LEVELS + 1]
        if len(above) > 1 and above[-1] == Path(above[-1].anchor):
            above.pop()  # never the whole disk
        ros = os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep)
        ament = [os.path.join(x, "share") for x in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if x]
        named = [
            Path(os.path.abspath(file_path("folders", folder))) for folder in (*given, *(x for x in ros if x), *ament)
        ]
        self.roots = [*named, *above]
        self._packages: dict[str, list[Path]] = {}
        self.missing: list[str] = []

    def find(self, uri: str) -> str:
        """The path of the file that a URI or a relative path names; "" if there is none within bounds."""
        for scheme in SCHEMES:
            if uri.startswith(scheme):
                name, _, rest = unquote(uri.removeprefix(scheme)).partition("/")
                candidates = [folder / rest for folder in self._package(name)]
                break
        else:
            place = unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
            candidates = [self.home / place]
        for candidate in candidates:
            if found := self.inside(candidate):
                return found
        if uri not in self.missing:
            self.missing.append(uri)
        return ""

    def bounds(self, path: Path) -> str:
        """The path, normalised, if it lies in one of the folders; else ""."""
        place = os.path.normpath(path.as_posix().replace("\\", "/"))
        return place if any(place.startswith(f"{root}{os.sep}") for root in self.roots) else ""

    def inside(self, path: Path) -> str:
        """The path, normalised, if it is a file in one of the folders; else ""."""
        place = self.bounds(path)
        try:
            return place if place and os.path.isfile(place) else ""
        except ValueError:  # a NUL
            return ""

    def package(self, name: str) -> Path | None:
        """The folder of the package of that name."""
        return next(iter(self._called(name)), None)

    def _called(self, name: str) -> list[Path]:
        """Folders of that name: one of the folders that are searched, or in one of them."""
        if name in ("", ".", "..") or "\0" in name or "\\" in name or "/" in name:
            return []
        called = [root if root.name == name else root / name for root in self.roots]
        return [folder for folder in called if folder.is_dir()]

    def _package(self, name: str) -> list[Path]:
        """Folders that may be the package of that name: those so called, then all that are searched."""
        if name not in self._packages:
            self._packages[name] = self._called(name) + self.roots
        return self._packages[name]
