"""CasADi as a peer: its derivatives of torsor's own steps as C, compiled by gcc -O3 and run over all states."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import casadi as ca
import numpy as np
from contenders import State
from harness import Contender

import torsor as ts
from torsor import reference
from torsor.sweeps import Algorithm

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
LOOP = """
void all_states(const double *q, const double *v, const double *u, double *out, long n, long states) {{
  casadi_real w[{w} + 1]; casadi_int iw[{iw} + 1]; const casadi_real *arg[8]; casadi_real *res[8];
  for (long k = 0; k < states; ++k) {{
    arg[0] = q + k * n; arg[1] = v + k * n; arg[2] = u + k * n; res[0] = out + k * 3 * n * n;
    jacobian(arg, res, iw, w, 0);
  }}
}}
"""


def casadi_jacobian(model: ts.Model, algorithm: Algorithm, sets: list[State]) -> Contender:
    """The dense Jacobian by (q, v, u) of an algorithm on a model without quaternions."""
    n = model.nv
    inputs = [ca.SX.sym(name, n) for name in algorithm.inputs]
    numbers = {name: [x[i] for i in range(n)] for name, x in zip(algorithm.inputs, inputs)}
    y = ca.vertcat(*reference.evaluate(algorithm, model, numbers))
    J = ca.densify(ca.jacobian(y, ca.vertcat(*inputs)))
    function = ca.Function("jacobian", inputs, [J], {"cse": True})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "jacobian.c"
        generator = ca.CodeGenerator("jacobian.c")
        generator.add(function)
        source.write_text(generator.dump() + LOOP.format(w=function.sz_w(), iw=function.sz_iw()))
        library = source.with_suffix(".so")
        subprocess.run(["gcc", *FLAGS, "-o", str(library), str(source), "-lm"], check=True)
        loaded = ctypes.CDLL(str(library)).all_states
    loaded.restype = None
    out = np.empty((len(sets[0][0]), 3, n, n))

    def run(*state: np.ndarray) -> np.ndarray:
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*state, out)]
        loaded(*pointers, ctypes.c_long(n), ctypes.c_long(len(out)))
        return out

    name = "CasADi, C by gcc -O3"  # columns first, as CasADi stores matrices
    return Contender(name, run, sets, lambda result: result[-1].swapaxes(1, 2).ravel())
