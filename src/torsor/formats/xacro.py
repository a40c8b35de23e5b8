"""xacro files, expanded by the package xacro (extra `xacro`), only on request: they contain Python expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torsor.errors import ArgumentError, ModelError
from torsor.formats.folders import Folders
from torsor.later import Later, loaded

NEEDED = "xacro files are expanded by xacro", "torsor[xacro]"
xacro, substitution_args = Later("xacro", *NEEDED), Later("xacro.substitution_args", *NEEDED)


def expand(path: Path, asked: bool | Mapping[str, Any], folders: Folders) -> bytes:
    """The URDF made from a xacro file; `asked` is True, or the values of its arguments."""
    if asked is False:
        raise ArgumentError(
            f"{path}: a xacro file runs code when it is expanded; load it with xacro=True if you trust it"
        )
    if not (asked is True or isinstance(asked, Mapping)):
        raise ArgumentError(f"xacro must be True or a dictionary of arguments, not {asked!r}")
    loaded(xacro, where=f"{path}: ")
    arguments = {} if asked is True else {str(key): str(value) for key, value in asked.items()}
    with _packages(folders):
        try:
            return xacro.process_file(str(path), mappings=arguments).toprettyxml(indent=" ", encoding="utf-8")
        except Exception as error:  # any error of the code in the file
            raise ModelError(f"{path}: xacro cannot expand it: {type(error).__name__}: {error}") from None


@contextmanager
def _packages(folders: Folders) -> Iterator[None]:
    """Let $(find PACKAGE) search the folders of meshes instead of an installation of ROS."""

    def find(name: str) -> str:
        folder = folders.package(name)
        if folder is None:
            searched = ", ".join(map(str, folders.roots))
            raise substitution_args.SubstitutionException(
                f"package {name!r} is in none of {searched}; folders= adds some"
            )
        return str(folder)

    arguments = loaded(substitution_args)
    kept, arguments._eval_find = arguments._eval_find, find
    try:
        yield
    finally:
        arguments._eval_find = kept
