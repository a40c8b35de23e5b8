"""Robot files that fall for two seconds with the defaults of `simulate`: how long that takes, and whether energy grows.

TORSOR_ROBOTS=folder python bench/falling_robots.py [PACKAGE ...]     writes bench/results/falling_robots.json

Every URDF file with a moving joint falls on a fixed and on a free base, every MJCF file as it is. Times are of the
processor, per second of motion, after compilation. The energy is that of the motion, of weight, springs and stops; its
gain is the largest rise above any earlier value, relative to the largest change of the kinetic energy.
"""

import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

import test_robots_open as robots  # noqa: E402
from harness import write  # noqa: E402
from robot_files import MOVING, package, short  # noqa: E402

import torsor as ts  # noqa: E402
from torsor.errors import TorsorError  # noqa: E402
from torsor.model.freedoms import limited_coordinates  # noqa: E402
from torsor.motion.law import stop_part  # noqa: E402

RESULT = ROOT / "bench" / "results" / "falling_robots.json"
DURATION, PATIENCE = 2.0, 60.0  # seconds of motion, and of the processor until a file counts as one that never ends
MOST_FREEDOMS = 200
REFUSED = {  # what errors say, and what that means
    "nothing moves": "nothing moves",
    "MuJoCo refuses it": "MuJoCo refuses it, too",
    "not well-formed XML": "not XML",
}


def held(model: ts.Model, q: np.ndarray) -> np.ndarray:
    """The energy (rows,) of the stops, as springs."""
    part = stop_part(model, model.lower, model.upper, model.stop_stiffness, model.stop_damping)
    column = limited_coordinates(model)
    lower, upper, stiffness, _ = (np.broadcast_to(x, model.nv)[column >= 0] for x in part.numbers)
    x = q[:, column[column >= 0]]
    depth = np.maximum(lower - x, 0) + np.maximum(x - upper, 0)
    return (stiffness * depth**2).sum(axis=1) / 2


def fall(path: Path, base: str | None) -> dict[str, Any] | None:
    """What became of one machine."""
    model = ts.load(path, base=base) if base else ts.load(path)
    if not 0 < model.nv <= MOST_FREEDOMS:
        return None
    ts.simulate(model, duration=DURATION)  # compiles whatever the run needs, the implicit method among it
    begin = time.process_time()
    simulation = ts.Simulation(model)
    run = simulation.run(DURATION)
    seconds = (time.process_time() - begin) / DURATION
    energy = run.energy + run.elastic_energy + held(model, run.q)
    gain = float((energy - np.minimum.accumulate(energy)).max() / max(np.ptp(run.kinetic_energy), 1e-9))
    return {
        "file": short(path), "base": base or "as it is", "freedoms": model.nv, "seconds": round(seconds, 4),
        "evaluations": simulation.stepper.evaluations, "switched": "switched" in run.about,
        "finite": bool(np.isfinite(run.q).all()), "gain": gain,
    }  # fmt: skip


def measured() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _give_up)
    urdf = [path for path in robots.files(".urdf") if MOVING.search(path.read_bytes())]
    mjcf = [path for path in robots.files(".xml", ".mjcf") if b"<mujoco" in path.read_bytes()[:100_000]]
    jobs = [(path, base) for path in urdf for base in ("fixed", "free")] + [(path, None) for path in mjcf]
    wanted = sys.argv[1:]  # packages; all if none is named
    jobs = [job for job in jobs if not wanted or any(package(job[0]).startswith(name) for name in wanted)]
    rows, refused, failed = [], Counter(), {}
    for path, base in jobs:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        try:
            if (row := fall(path, base)) is not None:
                rows.append(row)
        except TorsorError as error:
            if not hasattr(error, "partial"):
                refused[next((why for words, why in REFUSED.items() if words in str(error)), "other")] += 1
            else:
                failed[f"{short(path)} ({base})"] = str(error)
        except TimeoutError:
            failed[f"{short(path)} ({base})"] = f"more than {PATIENCE:g} s"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"{len(rows):4d} {short(path)} {rows[-1] if rows else ''}", flush=True)
    seconds = np.array([row["seconds"] for row in rows if row["freedoms"] <= 40])
    gains = np.array([row["gain"] for row in rows])
    return {
        "machines": len(rows), "failed": failed, "do not load": dict(refused),
        "all finite": all(row["finite"] for row in rows),
        "seconds per second of motion, at most 40 freedoms": {
            "median": float(np.median(seconds)), "largest": float(seconds.max()), "above 1": int((seconds > 1).sum())},
        "energy gained": {"median": float(np.median(gains)), "largest": float(gains.max())},
        "slowest": sorted(rows, key=lambda row: -row["seconds"])[:10],
    }  # fmt: skip


def _give_up(*_: Any) -> None:
    raise TimeoutError


if __name__ == "__main__":
    write(RESULT, measured())
