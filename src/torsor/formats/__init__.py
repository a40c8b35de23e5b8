"""Files <-> Model: the suffix of the path says the format."""

from __future__ import annotations

from pathlib import Path

from torsor.errors import ArgumentError
from torsor.formats import toml
from torsor.model import Model

FORMATS = {".toml": toml}


def load(path: str | Path) -> Model:
    """The model in a file."""
    return _format(path).read(Path(path).read_text(encoding="utf-8"), str(path))


def save(model: Model, path: str | Path) -> None:
    """Write a model to a file from which `load` makes an equal one."""
    Path(path).write_text(_format(path).write(model), encoding="utf-8")


def _format(path: str | Path):
    try:
        return FORMATS[Path(path).suffix.lower()]
    except KeyError:
        raise ArgumentError(f"{path}: unknown suffix; torsor reads and writes {', '.join(FORMATS)}") from None
