"""What a user waits for before the first result: import, and the first call, cache empty and filled."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

from harness import Claim, Report, Row, progress

IMPORT = """
import time{before}
start = time.perf_counter()
import {package}
print(time.perf_counter() - start)
"""

HEAVY = """
import sys, torsor
print(len({"casadi", "llvmlite"} & set(sys.modules)))
"""

FIRST_CALL = """
import time
import numpy as np, torsor as ts
model = ts.zoo.puma_lee()
q, v, tau = np.random.default_rng(0).normal(size=(3, 6))
ts.forward_dynamics  # a name is imported when it is first used
start = time.perf_counter()
ts.forward_dynamics(model, q, v, tau)
print(time.perf_counter() - start)
"""

IMPORT_AND_CALL = """
import time
import numpy as np
start = time.perf_counter()
import torsor as ts
ts.forward_dynamics(ts.zoo.puma_lee(), *np.ones((3, 6)))
print(time.perf_counter() - start)
"""


def measure(rounds: int) -> Report:
    report = Report("startup", "From nothing to the first result")
    bounds = {"import torsor after numpy": 0.04, "first call, cold cache": 1.0, "first call, warm cache": 0.05}
    for name, run in _runs().items():
        progress(name)
        run()
        times = [run() for _ in range(min(rounds, 7))]
        report.rows.append(Row("start-up", name, "s", min(times), statistics.median(times)))
        if name in bounds:
            report.claims.append(Claim(f"{name}, s", statistics.median(times), at_most=bounds[name]))
    progress("")
    loaded = python(HEAVY)
    report.claims.append(Claim("of CasADi and llvmlite, loaded by `import torsor`", loaded, at_most=0))
    return report


def _runs() -> dict[str, Callable[[], float]]:
    warm = tempfile.TemporaryDirectory()

    def cold_call() -> float:
        with tempfile.TemporaryDirectory() as empty:
            return python(FIRST_CALL, cache=empty)

    def warm_call() -> float:
        return python(FIRST_CALL, cache=warm.name)

    def import_and_call() -> float:
        return python(IMPORT_AND_CALL, cache=warm.name)

    python(FIRST_CALL, cache=warm.name)  # fills it
    return {
        "import torsor after numpy": lambda: python(IMPORT.format(package="torsor", before=", numpy")),
        "import numpy": lambda: python(IMPORT.format(package="numpy", before="")),
        "import pinocchio": lambda: python(IMPORT.format(package="pinocchio", before="")),
        "first call, cold cache": cold_call,
        "first call, warm cache": warm_call,
        "import after numpy, a model and its first call, warm cache": import_and_call,
    }


# pip compiles modules to byte code when it installs them; from a checkout they are compiled by the first run.
BYTE_CODE = tempfile.TemporaryDirectory()


def python(code: str, cache: str | None = None) -> float:
    """The number that `code` prints, in a fresh interpreter."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": BYTE_CODE.name} | ({"TORSOR_CACHE": cache} if cache else {})
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)
