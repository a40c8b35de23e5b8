"""Finding the meshes and other files that a robot file names.

A robot file may name files in its own folder, in folders up to `LEVELS` above it, in the folders given by the caller,
and in the packages of ROS_PACKAGE_PATH and AMENT_PREFIX_PATH.  Everything else is out of bounds, so a robot file from a
stranger reads no other file.  A link counts as its target, except in the packages, which link to their sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

from torsor.validate import file_path

LEVELS = 5
SCHEMES = ("package://", "model://")


class Folders:
    """Finds the files that one robot file names."""

    def __init__(self, path: str | Path, given: Sequence[str | Path] = ()):
        self.home = os.path.dirname(os.path.abspath(path))
        above = [self.home]
        while len(above) <= LEVELS and os.path.dirname(above[-1]) != above[-1]:
            above.append(os.path.dirname(above[-1]))
        if len(above) > 1 and os.path.dirname(above[-1]) == above[-1]:
            above.pop()  # never the whole disk
        ros = os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep)
        ament = [os.path.join(x, "share") for x in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if x]
        named = [os.path.abspath(file_path("folders", folder)) for folder in given]
        packages = [os.path.abspath(folder) for folder in (*(x for x in ros if x), *ament)]
        self.roots = list(dict.fromkeys([*named, *packages, *above]))
        self._packaged = tuple(f"{root}{os.sep}" for root in packages)
        self._starts = tuple(f"{os.path.realpath(root)}{os.sep}" for root in self.roots)
        self._beside = list(dict.fromkeys([self.home, *self.roots]))  # the starting points of relative paths
        self._packages: dict[str, list[str]] = {}
        self._real: dict[str, str] = {}  # folder -> its target
        self.missing: dict[str, None] = {}  # in the order in which they were missed

    def find(self, uri: str) -> str:
        """The path of the file named by a URI or a relative path; "" if there is none within bounds."""
        if uri.startswith(SCHEMES):
            name, _, rest = unquote(uri.partition("://")[2]).partition("/")
            places = self._package(name)
        else:
            rest, places = unquote(uri[7:]) if uri.startswith("file://") else uri, self._beside
        for i, place in enumerate(places):
            if found := self.inside(os.path.join(place, rest)):
                if i and places is not self._beside:  # search there first for the next file of the package
                    places.insert(0, places.pop(i))
                return found
        self.missing[uri] = None
        return ""

    def note_missing(self, note: Callable[[str, str, str], None]) -> None:
        """Note the files that were not found."""
        if self.missing:
            tried = ", ".join(self.roots[:4])
            files = ", ".join(list(self.missing)[:3]) + (" ..." if len(self.missing) > 3 else "")
            words = f"not found: {files}; searched {tried} and above; folders= adds"
            note("read", f"{len(self.missing)} meshes", words)

    def bounds(self, path: str) -> str:
        """The normalised path if its target is in one of the folders; else ""."""
        place = os.path.normpath(path.replace("\\", "/"))
        folder, name = os.path.split(place)
        try:
            if folder not in self._real:
                self._real[folder] = os.path.realpath(folder)
            real = os.path.realpath(place) if os.path.islink(place) else os.path.join(self._real[folder], name)
        except ValueError:  # a NUL
            return ""
        inside = f"{real}{os.sep}".startswith(self._starts) or place.startswith(self._packaged)
        return place if inside else ""

    def inside(self, path: str) -> str:
        """The normalised path if it is a file in one of the folders; else ""."""
        try:
            return self.bounds(path) if os.path.isfile(os.path.normpath(path.replace("\\", "/"))) else ""
        except ValueError:  # a NUL
            return ""

    def package(self, name: str) -> str | None:
        """The folder of the package of that name."""
        return next(iter(self._called(name)), None)

    def _called(self, name: str) -> list[str]:
        """Folders of that name among the searched folders, or directly in them."""
        if name in ("", ".", "..") or any(sign in name for sign in "\0\\/"):
            return []
        called = [root if os.path.basename(root) == name else os.path.join(root, name) for root in self.roots]
        return [folder for folder in called if os.path.isdir(folder)]

    def _package(self, name: str) -> list[str]:
        """Folders that may be the package of that name: those with the name, then all searched folders."""
        if name not in self._packages:
            self._packages[name] = self._called(name) + self.roots
        return self._packages[name]
