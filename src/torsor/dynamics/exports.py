"""`export`: a function of one model as C99 files for a controller, or as WebAssembly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.backends import c99
from torsor.backends.cpu import Program
from torsor.dynamics.blocks import SEED, Blocks, random_states
from torsor.dynamics.derivatives import Differentiated
from torsor.dynamics.external import CasadiExternal
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.matrix_gradients import MatrixGradient
from torsor.dynamics.programs import OptionalInputs, compile
from torsor.errors import ArgumentError
from torsor.files import digest, signature, write_whole
from torsor.later import Later
from torsor.model.model import Model, require_model
from torsor.model.names import BodyFrames

wasm_files = Later("torsor.backends.wasm_files")  # needs the code writers, which few programs load
STATES = 5  # states in the test vectors
LANGUAGES = {"c": "C99", "wasm": "WebAssembly"}
DEFAULTS: dict[str, Any] = {"dtype": "float64", "body": None, "method": "auto", "specialised": None, "Q": None}
DEFAULTS |= dict.fromkeys(OptionalInputs.__annotations__, False)


class ProgramOptions(OptionalInputs, total=False):
    """The options of `compile` that `export` takes as well."""

    dtype: str
    body: int | str | None
    method: str
    specialised: bool | None
    Q: ArrayLike | BodyFrames | None


def export(model: Model, function: Callable[..., Any], folder: str | Path, *, name: str | None = None,
           language: str = "c", api: str = "c", **options: Unpack[ProgramOptions]) -> list[Path]:  # fmt: skip
    """Write a function of one model as C99, for controllers without Python, or as WebAssembly.

    In C, it writes NAME.h and NAME.c (the function: no allocation, no global state, no library except libm),
    NAME_vectors.h (inputs and expected outputs), example.c (runs the function on them) and README.txt (how to compile
    it). In WebAssembly, it writes NAME.wasm, NAME.mjs (a JavaScript module that loads it, for browsers and Node),
    NAME_vectors.json, example.mjs and README.txt. The last line of a text file records the version of torsor, the date
    and the options.

    Parameters
    ----------
    model : Model
        The machine.
    function : callable
        A public function, or `vjp` or `jvp` of one.
    folder : str or Path
        Created if it does not exist; only files that torsor wrote before are replaced.
    name : str, optional
        The name of the function in C. Default: made from the names of the model and the function.
    language : str, default "c"
        "c" or "wasm".
    api : str, default "c"
        "c", or "casadi": NAME_casadi.c adds the function and its derivatives for `casadi.external` and acados
        (NAME_casadi, jac_NAME_casadi, adj1_NAME_casadi, jac_adj1_NAME_casadi).
    **options : str, bool, int or (n, 4, 4) array_like
        As of `compile`: dtype, body, method, specialised, Q, external, base_velocity, base_acceleration.

    Returns
    -------
    paths : list of Path
        The files.

    Raises
    ------
    ArgumentError
        The function cannot be exported, or a file was not written by torsor.

    Examples
    --------
    >>> import torsor as ts
    >>> [path.name for path in ts.export(ts.zoo.pendulum(), ts.gravity_forces, "hold", name="hold")]
    ['hold.h', 'hold.c', 'hold_vectors.h', 'example.c', 'README.txt']
    """
    return write_all(
        validate.file_path("folder", folder), exported_files(model, function, name, (language, api), **options)
    )


def exported_files(model: Model, function: Callable[..., Any], name: str | None, form: tuple[str, str],
                   **options: Unpack[ProgramOptions]) -> dict[str, bytes]:  # fmt: skip
    """The content of each file, in a language and for an API."""
    require_model(model)
    language, api = form
    validate.chosen("language", language, LANGUAGES)
    validate.chosen("api", api, ("c", "casadi"))
    if (language, api) == ("wasm", "casadi"):
        raise ArgumentError('api="casadi" is for language="c"')
    if not isinstance(function, Differentiated) and not any(function is known for known in ALGORITHMS):
        known = (*(f.__name__ for f in ALGORITHMS), "and their vjp and jvp")
        raise validate.refused_function(function, "cannot be exported; these can", known)
    for unknown in options.keys() - ProgramOptions.__annotations__.keys():
        raise ArgumentError(
            f"export has no option {unknown!r}; it has name, language, api, {', '.join(ProgramOptions.__annotations__)}"
        )
    program = compile(model, function, **options)
    if isinstance(program, MatrixGradient):
        raise ArgumentError(
            f"{function.__name__} of {model!r} is a sum over the columns of a matrix and not one function in C; "
            "export the vjp of a product: inverse_dynamics is M x, mass_solve M^-1 x, and body_twists J v"
        )
    name = c99.identifier(model.name, function.__name__) if name is None else _c_name(name)
    states = random_states(program, STATES)
    Q = program.request.body_frames
    about = dict(
        model=model.name, key=model.key, function=function.__name__, **(DEFAULTS | options), api=api, seed=SEED
    ) | ({"Q": digest(Q.Q)} if Q else {})
    last = c99.harmless(signature(about))
    if language == "wasm":
        return _wasm_files(program, name, states, last)
    external = _external(model, function, name, options) if api == "casadi" else None
    return _c_files(program, name, states, last, external)


def _c_files(program: Program, name: str, states: list[NDArray[Any]], last: str,
             external: CasadiExternal | None) -> dict[str, bytes]:  # fmt: skip
    text = c99.CFunction.of(program.request, name)
    files = {
        f"{name}.h": text.header(),
        f"{name}.c": text.source(),
        f"{name}_vectors.h": c99.vectors(text, states, np.asarray(program.rows(*states))),
        "example.c": c99.example(text),
        "README.txt": c99.readme(text),
    }
    if external:
        files |= external.files()
        files["README.txt"] += external.readme()
    return {file: f"{content}/* {last} */\n".encode("ascii") for file, content in files.items()}


def _wasm_files(program: Program, name: str, states: list[NDArray[Any]], last: str) -> dict[str, bytes]:
    files = wasm_files.WasmFunction(program.request, name).files(states, np.asarray(program.rows(*states)), last)
    return {file: x if isinstance(x, bytes) else x.encode("ascii") for file, x in files.items()}


def _external(model: Model, function: Callable[..., Any], name: str, options: ProgramOptions) -> CasadiExternal:
    if options.get("dtype", "float64") != "float64" or isinstance(function, Differentiated):
        raise ArgumentError(
            'api="casadi" is for float64, and for the function itself: its derivatives are exported too'
        )
    return CasadiExternal(Blocks(model, function, {key: x for key, x in options.items() if key != "dtype"}), name)


def _c_name(name: Any) -> str:
    validate.word("name", name)
    if not c99.free_name(name):
        raise ArgumentError(
            f"name must be a C identifier of at most 100 letters, digits and _ that begins with a letter and is "
            f"neither a word of C or libm nor one that the files use themselves, not {validate.shown(name)}"
        )
    return name


def write_all(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Write all files.  On failure, delete the new ones; files already replaced stay replaced."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / name for name in files]
        new = [path for path in paths if not path.exists()]
        for path in paths:
            if path not in new and c99.MARK not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
                raise ArgumentError(f"{path} was not written by torsor and is not replaced; choose another folder")
    except OSError as reason:
        raise ArgumentError(f"{folder}: cannot be written ({reason.strerror or reason})") from None
    try:
        for path, content in zip(paths, files.values()):
            write_whole(path, content)
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    return paths
