"""Robot files by package: how many move, load, and agree with Pinocchio (URDF) or MuJoCo (MJCF), and why others do not.

TORSOR_ROBOTS=folder python bench/robot_files.py     writes bench/results/robot_files.json, for docs/robots.md

The first folder below TORSOR_ROBOTS is the package; a file counts once, whatever its name.  `tests/test_robots_open.py`
compares.
"""

import os
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

import test_robots_open as robots  # noqa: E402
from harness import write  # noqa: E402

import torsor as ts  # noqa: E402
from torsor.errors import TorsorError  # noqa: E402

RESULT = ROOT / "bench" / "results" / "robot_files.json"
MOVING = re.compile(rb"""<joint\b[^>]*?\btype\s*=\s*["'](?!fixed\b)""")
# Packages whose files are made to test readers, most of them wrong on purpose.
TEST_DATA = ("urdf-usd-converter", "xacrodoc", "dynibo")


def measured() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    urdf = [path for path in robots.files(".urdf") if MOVING.search(path.read_bytes())]
    mjcf = [path for path in robots.files(".xml", ".mjcf") if b"<mujoco" in path.read_bytes()[:100_000]]
    return {
        "URDF files with a moving joint": tried(urdf, ("fixed", "free"), robots.pinocchio, robots.AGREEMENT),
        "MJCF files that MuJoCo loads": tried(mjcf, (None,), robots.mujoco, 1e-9, only_loaded=True),
    }


def tried(paths: list[Path], bases: tuple[Any, ...], peer_of: Any, agreement: float,
          only_loaded: bool = False) -> dict[str, Any]:  # fmt: skip
    """Counts by package, and what did not load or did not agree."""
    found: dict[str, Counter[str]] = {}
    rest: dict[str, str] = {}
    for path in paths:
        peers = [peer_of(path, base) for base in bases]
        if only_loaded and (peers[0] is None or not peers[0].nv):
            continue
        counts = found.setdefault(package(path), Counter())
        counts["files"] += 1
        counts["peer loads"] += int(peers[0] is not None)
        try:
            models = [ts.load(path, base=base) for base in bases]
        except TorsorError as error:
            rest[short(path)] = str(error).removeprefix(f"{path}: ").replace(str(path), short(path))
            continue
        counts["torsor loads"] += 1
        if peers[0] is None:
            continue
        if max(peer.nv for peer in peers) > robots.MOST_FREEDOMS:
            rest[short(path)] = f"not compared: {peers[0].nv} freedoms"
            continue
        counts["compared"] += 1
        worst = max(max(robots.differences(model, peer).values()) for model, peer in zip(models, peers))
        counts["agree"] += int(worst <= agreement)
        if worst > agreement:
            rest[short(path)] = f"differs by {worst:.1e}"
    real = [counts for name, counts in found.items() if not name.startswith(TEST_DATA)]
    total = sum(real, Counter())
    return {"all but test data": dict(total), "packages": {k: dict(v) for k, v in sorted(found.items())}, "rest": rest}


def package(path: Path) -> str:
    return short(path).split("/")[0]


def short(path: Path) -> str:
    return path.relative_to(os.environ["TORSOR_ROBOTS"]).as_posix()


if __name__ == "__main__":
    result = measured()
    write(RESULT, result)
    for kind, counts in result.items():
        print(kind, counts["all but test data"])
        for path, why in counts["rest"].items():
            print(f"  {path}: {why}")
