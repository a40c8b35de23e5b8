"""Files <-> Model: the suffix of the path selects the format.

    .toml     text that people write and read; for models of up to some 10^5 bodies (`toml.py`)
    .torsor   the arrays of the model, checksummed, for models of a million bodies (`binary.py`)

Both give back the same model, bit for bit. A file is written completely or not at all. A model that is read is checked
like any other: a damaged or hostile file raises a ModelError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torsor.errors import ArgumentError, ModelError
from torsor.files import read_whole, write_whole
from torsor.formats import binary, toml
from torsor.model import Model
from torsor.model.model import require_model
from torsor.validate import file_path


class Format(Protocol):
    """The interface of a format."""

    def decode(self, content: bytes, path: str) -> Model:
        """The model in the content of a file; `path` is its name in messages."""

    def encode(self, model: Model) -> bytes:
        """The content of the file of a model."""


FORMATS: dict[str, Format] = {".toml": toml, ".torsor": binary}


def load(path: str | Path) -> Model:
    """The model in a file."""
    form = _format(path)
    return form.decode(read_whole(path, ModelError), str(path))


def save(model: Model, path: str | Path) -> None:
    """Write a model to a file from which `load` makes an equal one."""
    require_model(model)
    write_whole(path, _format(path).encode(model))


def _format(path: str | Path) -> Format:
    suffix = file_path("path", path).suffix.lower()
    if suffix not in FORMATS:
        raise ArgumentError(f"{path}: unknown suffix; torsor reads and writes {', '.join(FORMATS)}")
    return FORMATS[suffix]
