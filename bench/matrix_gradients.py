"""The vjp of a humanoid's matrices on one core: straight-line code against the sum over columns, unrolled and in loops.

The peer is the sum with its product in loops, which serves machines of any size; answers are compared with it.
With TORSOR_CACHE=off, the seconds to make a program are those without machine code on disk.
"""

from __future__ import annotations

import time

import numpy as np
from contenders import states
from harness import Claim, Contender, Report, race

import torsor as ts
from torsor.backends.cpu import compile_request
from torsor.compiler.derivative import takes_frame
from torsor.compiler.request import PATIENT, Request
from torsor.dynamics.derivatives import Differentiated
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.matrix_gradients import MatrixGradient, of_product

STATES, SETS = 1024, 3
FUNCTIONS = (ts.mass_matrix, ts.inverse_mass_matrix, ts.coriolis_matrix, ts.jacobian, ts.jacobian_dot)


def measure(rounds: int) -> Report:
    report = Report("matrix_gradients", f"vjp of the matrices of a humanoid, one core, {STATES} states")
    model = ts.zoo.humanoid()
    for function in FUNCTIONS:
        body = {"body": model.n - 1} if takes_frame(ALGORITHMS[function]) else {}
        pull, rng = ts.vjp(function), np.random.default_rng(1)
        inputs, rows = ALGORITHMS[function].inputs, 6 if body else model.nv
        given = [
            (*(x[:2] if "v" in inputs else x[:1]), rng.normal(size=(STATES, rows, model.nv)))
            for x in states(model, STATES, SETS)
        ]
        looped = ts.compile(model, pull, specialised=False, **body)
        begin = time.perf_counter()
        straight = ts.compile(model, pull, **body)
        seconds = time.perf_counter() - begin
        programs = {
            "sum, loops": looped,
            "sum, unrolled": _unrolled_sum(model, pull, looped),
            "straight line": straight,
        }
        rows_of = race(
            function.__name__,
            [Contender(name, program, given, answer=_row) for name, program in programs.items()],
            unit="per state", per=STATES, rounds=rounds,
        )  # fmt: skip
        report.rows += rows_of
        report.claims += [
            Claim(f"{function.__name__}: sum of unrolled products / straight line", rows_of[1].min / rows_of[2].min,
                  at_least=1.0),
            Claim(f"{function.__name__}: seconds to make straight-line code", seconds),
        ]  # fmt: skip
    return report


def _unrolled_sum(model: ts.Model, pull: Differentiated, looped: MatrixGradient) -> MatrixGradient:
    """The sum whose product is unrolled, as for machines with too many entries for straight-line code."""
    algorithm, _ = pull.algorithm(model, specialised=False)
    product = compile_request(Request(of_product(algorithm), model, unroll=PATIENT))
    return MatrixGradient(looped.name, looped.inputs, looped.frame, looped.target, product)


def _row(found) -> np.ndarray:
    return np.concatenate(found, axis=-1)
