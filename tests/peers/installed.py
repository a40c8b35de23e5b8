"""The libraries that tests compare with or write files for, as far as they are installed.

At the top of a file, `pin = peer("pinocchio")` takes the place of `import pinocchio as pin`: without Pinocchio the
tests that use it are skipped, and the other tests of the file run.  A test that fails because torsor itself asks for a
peer that is not installed is skipped as well (`conftest.py`).
"""

import importlib
import os
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest

# Continuous integration sets this: a peer that is missing there is an error, not a skipped test (see conftest.py).
ALL = os.environ.get("TORSOR_SKIP") == "never"

# The modules that tests can do without, and the distribution that brings each, in the extra `test` (tested).
PEERS = {
    "casadi": "casadi", "clarabel": "clarabel", "collada": "pycollada", "dask": "distributed",
    "distributed": "distributed", "fsspec": "fsspec", "gymnasium": "gymnasium", "hatchling": "hatchling", "jax": "jax",
    "mujoco": "mujoco", "openmm": "openmm", "pdbfixer": "pdbfixer", "PeptideBuilder": "PeptideBuilder",
    "pinocchio": "pin", "pyarrow": "pyarrow", "sympy": "sympy", "trimesh": "trimesh", "xacro": "xacro",
    "xarray": "xarray", "zarr": "zarr",
}  # fmt: skip
# Peers that continuous integration may be without: large, or not on PyPI for every system.
RARE = ("MDAnalysis", "executorlib", "mdtraj", "moto", "parsl", "pydrake", "ray", "s3fs", "torch")
MISSING = {name for name in (*PEERS, *RARE) if find_spec(name) is None and not (ALL and name in PEERS)}
# Files that are nothing without a peer; they may import it.
WHOLE = {"test_gym.py": "gymnasium"}


def peer(name: str) -> Any:
    """The module `name` of a peer, such as "pinocchio" or "pyarrow.parquet"; if it is missing, what skips its user.

    So it is with torsor's own module for a peer, such as "torsor.casadi".
    """
    package = name.removeprefix("torsor.").partition(".")[0]
    if package not in PEERS and package not in RARE:
        raise LookupError(f"peers/installed.py does not list {package!r}")
    return _Missing(name) if package in MISSING else importlib.import_module(name)


def missing_peer(error: BaseException | None) -> str | None:
    """The peer without which an exception, or one that led to it, was raised; None if that is not why."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in MISSING:
            return package
        error = error.__cause__ or error.__context__
    return None


class _Missing:
    """In place of a module that is not installed: whoever uses it is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what pytest asks of every object of a file
            raise AttributeError(name)
        pytest.skip(f"needs {self._name}", allow_module_level=True)
