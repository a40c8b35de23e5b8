"""A Zarr v3 group on disk, written with JSON and NumPy alone; zarr, xarray and others read it, without torsor.

Every array has chunks along its first axis only.  A chunk is one file: written aside, synced and renamed, so that it is
there completely or not at all, and so that several processes can write different chunks without locks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError, TorsorError
from torsor.files import read_whole, write_whole

Array = NDArray[Any]
DIGEST = 16  # bytes


class StoreError(TorsorError):
    """A store that cannot be read or written, or that belongs to another study."""


@dataclass(frozen=True)
class Variable:
    """An array of a group: `rows` entries along the first axis, `chunk` of them in a file."""

    name: str
    rows: int
    chunk: int
    shape: tuple[int, ...]  # of an entry
    dtype: str
    axes: tuple[str, ...]  # names of all axes

    def metadata(self) -> dict[str, Any]:
        kind = np.dtype(self.dtype)
        codec: dict[str, Any] = {"name": "bytes"}
        if kind.itemsize > 1:
            codec["configuration"] = {"endian": "little"}
        return {
            "zarr_format": 3, "node_type": "array", "shape": [self.rows, *self.shape], "data_type": kind.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.chunk, *self.shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if kind.kind == "f" else 0, "codecs": [codec], "attributes": {},
            "dimension_names": list(self.axes),
        }  # fmt: skip

    @classmethod
    def read(cls, name: str, metadata: Mapping[str, Any]) -> Variable:
        rows, *shape = metadata["shape"]
        chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        return cls(name, rows, chunk, tuple(shape), metadata["data_type"], tuple(metadata["dimension_names"]))


class Group:
    """A folder that holds arrays and attributes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = self._json(path / "zarr.json")
        self.attributes: dict[str, Any] = found.get("attributes", {})
        names = self.attributes.get("arrays", [])
        self.variables = {name: Variable.read(name, self._json(path / name / "zarr.json")) for name in names}

    @classmethod
    def create(cls, path: Path, variables: Sequence[Variable], attributes: Mapping[str, Any]) -> Group:
        """A new group; its own metadata are written last, so that a group is there completely or not at all."""
        for variable in variables:
            _folder(path / variable.name)
            _write(path / variable.name / "zarr.json", json.dumps(variable.metadata()).encode())
        for inner in sorted({Path(variable.name).parent for variable in variables} - {Path(".")}):
            _write(path / inner / "zarr.json", _group({}))
        _write(path / "zarr.json", _group(dict(attributes) | {"arrays": [variable.name for variable in variables]}))
        return cls(path)

    @staticmethod
    def _json(path: Path) -> Any:
        content = read_whole(path, StoreError)
        try:
            return json.loads(content)
        except ValueError:
            raise StoreError(f"{path} is not JSON: the store is damaged") from None

    def _file(self, name: str, chunk: int) -> Path:
        zeros = ["0"] * len(self.variables[name].shape)
        return self.path.joinpath(name, "c", str(chunk), *zeros)

    def put(self, name: str, chunk: int, values: Array) -> bytes:
        """Write a chunk; the last one is filled up.  Returns its digest."""
        variable = self.variables[name]
        block = np.ascontiguousarray(values, np.dtype(variable.dtype).newbyteorder("<"))
        if len(block) < variable.chunk:
            block = np.concatenate([block, np.zeros((variable.chunk - len(block), *variable.shape), block.dtype)])
        file = self._file(name, chunk)
        _folder(file.parent)
        content = block.reshape(-1).view(np.uint8).data
        _write(file, content)
        return blake2b(content, digest_size=DIGEST).digest()

    def get(self, name: str, chunk: int) -> Array | None:
        """A chunk, or None if it is not there, or not whole."""
        variable = self.variables[name]
        try:
            content = self._file(name, chunk).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as reason:
            raise StoreError(f"{self._file(name, chunk)}: cannot be read ({reason.strerror})") from None
        shape = (variable.chunk, *variable.shape)
        kind = np.dtype(variable.dtype).newbyteorder("<")
        if len(content) != kind.itemsize * int(np.prod(shape)):
            return None
        rows = min(variable.chunk, variable.rows - chunk * variable.chunk)
        return np.frombuffer(content, kind).reshape(shape)[:rows]

    def digest(self, name: str, chunk: int) -> bytes:
        """That of a chunk as it is now; nothing if it is not there."""
        try:
            return blake2b(self._file(name, chunk).read_bytes(), digest_size=DIGEST).digest()
        except OSError:
            return b""

    def whole(self, name: str) -> Array:
        """The array; what is not there is zero, or NaN."""
        variable = self.variables[name]
        result = np.full((variable.rows, *variable.shape), np.nan if variable.dtype.startswith("float") else 0,
                         variable.dtype)  # fmt: skip
        for chunk in range(-(-variable.rows // variable.chunk)):
            found = self.get(name, chunk)
            if found is not None:
                result[chunk * variable.chunk :][: len(found)] = found
        return result


def _group(attributes: Mapping[str, Any]) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1).encode()


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(f"{path}: cannot be made ({reason.strerror})") from None


def _write(path: Path, content: bytes | memoryview) -> None:
    write_whole(path, content, StoreError)


def at(path: Any) -> Path:
    """The folder of a store on this machine."""
    found = Path(path)
    if "://" in str(path):
        raise ArgumentError(f"{path}: stores are folders; copy a finished one to an object store (docs/ensembles.md)")
    return found
