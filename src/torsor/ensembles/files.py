"""A study as a TOML file.

model = "panda"                       # a name from the zoo, or a model or robot file in the same folder
n = 10000
seed = 1
duration = 1.0                        # or times = [0.1, 0.2, ...]
method = "dopri5"                     # rtol, atol; or "rk4", "semi-implicit", "implicit-euler" with step
sampling = "random"                   # "sobol", "latin-hypercube"
device = "cpu"                        # "cuda"
keep = ["q", "v:max", "pose.hand"]    # see records.py
every = 1                             # thinning: of the times

[vary]                                # normal: mean, std; uniform: low, high; lognormal: median, sigma
"*.density" = { normal = [1.0, 0.1] }
"link3.mass" = { uniform = [0.9, 1.1], relative = true }
v0 = { uniform = [-0.5, 0.5] }

[forces.PD]                           # forces by name, with their parameters in Python
reference = 0.0
kp = 100.0
kd = 10.0

[states]                              # the same for all members: q0, v0
q0 = [0.0, 0.5, 0.0]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torsor.ensembles.draws import STATES, Distribution, LogNormal, Normal, Uniform
from torsor.errors import ArgumentError, TorsorError
from torsor.files import read_whole
from torsor.model.model import Model
from torsor.motion.forces import PD, Constant, Friction, Limits, Spring, Table
from torsor.validate import shown

DISTRIBUTIONS: dict[str, type[Distribution]] = {"normal": Normal, "uniform": Uniform, "lognormal": LogNormal}
KEYS = {
    "model": str, "n": int, "seed": int, "duration": (int, float), "times": list, "method": str, "step": (int, float),
    "rtol": (int, float), "atol": (int, float), "sampling": str, "keep": list, "every": int, "chunk": int,
    "device": str, "vary": dict, "states": dict, "forces": dict,
}  # fmt: skip
OLD = {"dt": "step", "record": "keep"}  # keys of torsor 0.1
FORCES = {force.__name__: force for force in (Constant, Friction, Limits, PD, Spring, Table)}


def read(path: Path, find_model: Callable[[str], Model]) -> dict[str, Any]:
    """The arguments of `ensemble` in a file; `find_model` finds a model by its name or file."""
    try:
        return _arguments(_parsed(path), path, find_model)
    except TorsorError as error:
        raise ArgumentError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_whole(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(str(error) or "brackets are nested too deeply") from None


def _arguments(table: dict[str, Any], path: Path, find_model: Callable[[str], Model]) -> dict[str, Any]:
    for key, value in table.items():
        if key not in KEYS:
            hint = f"it is called {OLD[key]} now" if key in OLD else f"a study has {', '.join(KEYS)}"
            raise ArgumentError(f"unknown key {shown(key)}; {hint}")
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):  # type: ignore[arg-type]
            raise ArgumentError(f"{key} = {shown(value)} has the wrong type")
    for key in ("model", "n", "vary"):
        if key not in table:
            raise ArgumentError(f"{key} is missing")
    name = table.pop("model")
    beside = path.parent / name
    model = find_model(str(beside) if beside.is_file() else name)
    vary = {key: _distribution(key, words) for key, words in table.pop("vary").items()}
    forces = [_force(key, words) for key, words in table.pop("forces", {}).items()]
    return {"model": model, "vary": vary, "forces": forces, **_states(table.pop("states", {})), **table}


def _states(words: dict[str, Any]) -> dict[str, Any]:
    for key in words:
        if key not in STATES:
            raise ArgumentError(
                f"unknown state {shown(key)}; there are {', '.join(STATES)}; gains belong to [forces.PD]"
            )
    return words


def _force(name: str, words: Any) -> Any:
    """The force of a table [forces.NAME]."""
    if name not in FORCES or not isinstance(words, dict):
        raise ArgumentError(f"unknown force {shown(name)}; a study may have [forces.NAME] of {', '.join(FORCES)}")
    try:
        return FORCES[name](**words)
    except TypeError:
        known = ", ".join(part.name for part in fields(FORCES[name]))
        raise ArgumentError(f"[forces.{name}] has {', '.join(words) or 'nothing'}; {name} takes {known}") from None


def _distribution(key: str, words: Any) -> Distribution:
    """{ normal = [mean, std], relative = true }"""
    given = dict(words) if isinstance(words, dict) else {}
    relative = given.pop("relative", False)
    kind = next(iter(given), "")
    if len(given) != 1 or kind not in DISTRIBUTIONS or not isinstance(relative, bool):
        known = ", ".join(DISTRIBUTIONS)
        raise ArgumentError(
            f"vary[{key!r}] = {shown(words)}: give one of {known} with two numbers, and perhaps relative"
        )
    if not isinstance(given[kind], list) or len(given[kind]) != 2:
        raise ArgumentError(f"vary[{key!r}]: {kind} takes two numbers or two lists, not {shown(given[kind])}")
    return DISTRIBUTIONS[kind](relative, *given[kind])
