# ruff: noqa: E501  the table of mutations has long lines
"""Mutations of what the papers say: does a row of `torsor papers` or a test notice each of them?

    python tests/mutations.py              # by hand, some hours of one core; writes tests/mutations.json
    python tests/mutations.py fixman       # only mutations of files whose name contains this

Each mutation changes one constant, sign or number in a copy of the sources. The rows of its papers run first, without
those that only show times; if all hold, the tests named in TESTS run. What neither notices is a survivor.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).with_suffix(".json")
TESTS = (
    "test_identities.py",
    "test_zoo.py",
    "test_fixman_measure.py",
    "test_brownian.py",
    "test_screws.py",
    "test_papers.py",
)
LIMIT = 900  # seconds for one mutation

ROWS = """
import sys
from torsor.papers import PAPERS, featherstone1999, lee2005
from torsor.papers.rows import every_row
featherstone1999.EXPONENTS = (6, 8)
lee2005.REPLICAS = 8000
for name, paper in PAPERS.items():
    if any(word in name for word in sys.argv[1].split("|")):
        left_out = ("_times", "_steps_taken", "_forced_puma")
        last = ("_planar_arm", "_free_falls", "_forced_stanford", "_operations", "_solvers")  # what takes long
        parts = [part for part in paper.PARTS if part.__name__ not in left_out]
        for row in every_row(sorted(parts, key=lambda part: part.__name__ in last)):
            if not row.holds:
                sys.exit(f"{name}: {row.place}: {row.quantity}")
"""


class Mutation(NamedTuple):
    file: str
    old: str
    new: str
    papers: str  # names of papers, or parts of them, with | between


PLOEN, SAHA, FEATHERSTONE, LEE5, LEE7 = "Ploen", "Saha", "Featherstone", "Lee & Chirikjian", "Wang"
ALL = "|".join((PLOEN, FEATHERSTONE, LEE7))
A, C, F = "algorithms", "dynamics/closed_forms", "dynamics/fixman"
MUTATIONS = [
    Mutation(*row)
    for row in (
        # recursions
        (f"{A}/ploen_park.py", "+ ad(V, S @ here.v)", "- ad(V, S @ here.v)", PLOEN),
        (f"{A}/ploen_park.py", "- ad_dual(V, J @ V)", "+ ad_dual(V, J @ V)", PLOEN),
        (f"{A}/ploen_park.py", "A + base.base_acceleration", "A - base.base_acceleration", PLOEN),
        (f"{A}/newton_euler.py", "cross(w1, J.lin) * 2.0", "cross(w1, J.lin) * 1.0", PLOEN),
        (f"{A}/newton_euler.py", "a + cross(base.base_velocity.ang, base.base_velocity.lin)", "a", PLOEN),
        (f"{A}/newton_euler.py", "dw = dw1 + cross(w1, J.ang) + dJ.ang", "dw = dw1 + dJ.ang", PLOEN),
        (f"{A}/kinematics.py", "Spatial.zero() if base.base_velocity is None else base.base_velocity", "Spatial.zero()", PLOEN),
        (f"{A}/ploen_park_forward.py", "- ad(joint, a_hat)", "+ ad(joint, a_hat)", PLOEN),
        (f"{A}/ploen_park_forward.py", "load - link.from_body(here.external)", "load + link.from_body(here.external)", PLOEN),
        (f"{A}/ploen_park_forward.py", "here.tau_hat - S.T(children.z)", "here.tau_hat + S.T(children.z)", PLOEN),
        (f"{A}/ploen_park_forward.py", "ck - pair(phi, lam)", "ck + pair(phi, lam)", PLOEN),
        (f"{A}/articulated.py", "u = b - S.T(F)", "u = b + S.T(F)", ALL),
        (f"{A}/articulated.py", "children.F + here.W", "children.F - here.W", PLOEN),
        (f"{A}/composite.py", "I = children.I + link.inertia", "I = children.I", PLOEN),
        (f"{A}/square_factor.py", "y = x + S.T(F)", "y = x - S.T(F)", LEE5),
        (f"{A}/square_factor.py", "sqrt(dk) * xk", "dk * xk", LEE5),
        (f"{A}/udut.py", "here.tau - keep[\"tau\"]", "here.tau + keep[\"tau\"]", SAHA),
        (f"{A}/fixman.py", "return (Subspace(self.B) @ l) - own", "return (Subspace(self.B) @ l) + own", LEE7),
        (f"{A}/fixman.py", "G = tuple(a - B @", "G = tuple(a + B @", LEE7),
        (f"{A}/fixman.py", "factor(S.gram())[1]", "factor(S.gram())[1][:0]", LEE7),
        (f"{A}/fixman.py", "* (1 / 3) for A in", "* (2 / 3) for A in", LEE5),
        (f"{A}/fixman.py", "[[-x for x in row] for row in braced]", "[[x for x in row] for row in braced]", LEE5),
        (f"{A}/constraint_force.py", "self.R.T @ w + self.w", "self.R.T @ w - self.w", FEATHERSTONE),
        # closed forms
        (f"{C}/operators.py", "-lie.ad(S @ v)", "lie.ad(S @ v)", PLOEN),
        (f"{C}/operators.py", "-lie.ad_dual(V)", "lie.ad_dual(V)", PLOEN),
        (f"{C}/operators.py", "np.zeros(3), -self.model.gravity", "np.zeros(3), self.model.gravity", PLOEN),
        (f"{C}/operators.py", "self.Gamma @ self.V + self.P_0 @ self.V_0)", "self.Gamma @ self.V)", PLOEN),
        (f"{C}/operators.py", "y[parent] += self.Ad_inv[i].T @ y[i]", "y[parent] -= self.Ad_inv[i].T @ y[i]", PLOEN),
        (f"{C}/factorization.py", "J = J - np.outer(U, U)", "J = J + np.outer(U, U)", PLOEN),
        (f"{C}/factorization.py", "np.linalg.inv(np.eye(len(self.X)) - self.X.T)", "np.linalg.inv(np.eye(len(self.X)) + self.X.T)",
         PLOEN),
        # Saha
        ("papers/saha_udut.py", "E[:k, k] = -L[:k, k] / L[k, k]", "E[:k, k] = L[:k, k] / L[k, k]", SAHA),
        ("papers/saha_udut.py", "free -= np.outer(psi_hat, psi[k])", "free -= 0.5 * np.outer(psi_hat, psi[k])", SAHA),
        ("papers/saha_udut.py", "U_inverse[i, k] = -p[i] @ free_", "U_inverse[i, k] = p[i] @ free_", SAHA),
        ("papers/saha_udut.py", "in_plane = Vec(link.a, 0.0, 0.0) - self.x.turn(link.r)",
         "in_plane = Vec(link.a, 0.0, 0.0) + self.x.turn(link.r)", SAHA),
        ("papers/saha_udut.py", "parent.I[i][j] + moment(i, j)", "parent.I[i][j] - moment(i, j)", SAHA),
        ("papers/saha_udut.py", "self.G[i][j] + parent.m", "self.G[i][j] - parent.m", SAHA),
        ("papers/saha_udut.py", "phi_hat = phi[i] - _dot(p[i], eta)", "phi_hat = phi[i] + _dot(p[i], eta)", SAHA),
        ("papers/saha_udut.py", "mu[1] + cross(c[i - 1], mu[0])", "mu[1] - cross(c[i - 1], mu[0])", SAHA),
        ("papers/saha2001.toml", "M = [191, -284]", "M = [191, -285]", SAHA),
        ("papers/saha2001.toml", "A9 = [[22, -26], [14, -18]]", "A9 = [[22, -26], [14, -17]]", SAHA),
        ("motion/references.py", "(x - sin(x)) / (2 * pi)", "(x - sin(x)) / (2.02 * pi)", SAHA),
        ("motion/references.py", "(1 - cos(x)) / self.T", "(1 - cos(x)) / (1.01 * self.T)", SAHA),
        # data of machines
        ("zoo/stanford.toml", "inertia = [0.003, 0.001, 0.002]", "inertia = [0.003, 0.001, 0.0025]", SAHA),
        ("zoo/stanford.toml", "inertia = [0.05, 0.06, 0.01]", "inertia = [0.05, 0.06, 0.011]", SAHA),
        ("zoo/stanford.toml", "d = 0.6", "d = 0.61", SAHA),
        ("zoo/stanford.toml", "mass = 0.6", "mass = 0.61", SAHA),
        ("zoo/puma_saha.toml", "inertia = [0.181, 0.1273, 0.181]", "inertia = [0.1955, 0.1273, 0.181]", SAHA),
        ("zoo/puma_saha.toml", "r = [0.0, 0.0, 0.019]", "r = [0.0, 0.0, 0.02]", SAHA),
        ("zoo/puma_saha.toml", "a = 0.02\n", "a = 0.021\n", SAHA),
        ("zoo/puma_lee.toml", "inertia = [0.003828, 0.003538, 0.0035]", "inertia = [0.0043, 0.003538, 0.0035]", LEE7),
        ("zoo/puma_lee.toml", "com = [0.216, 0.0, -0.026]", "com = [0.22, 0.0, -0.026]", LEE7),
        ("zoo/polypeptide.toml", "theta = 296.2", "theta = 296.3", LEE7),
        ("zoo/polypeptide.toml", "mass = 28.0101", "mass = 28.02", LEE7),
        ("zoo/puma560.toml", "inertia = [0.07, 0.0165, 0.086]", "inertia = [0.07, 0.0165, 0.066]", SAHA),
        ("zoo/puma560.toml", "armature = 4.71", "armature = 4.17", SAHA),
        # relaxed constraints
        (f"{F}/points.py", "C[1, ..., 1:, 0, 1] -= 1 / L[..., :-1]", "C[1, ..., 1:, 0, 1] += 1 / L[..., :-1]", LEE5),
        (f"{F}/points.py", "C[0, ..., 0, 1] = 1 / L", "C[0, ..., 0, 1] = 2 / L", LEE5),
        (f"{F}/solve.py", "2 * np.linalg.slogdet(C[0])[1] + np.linalg.slogdet(K)[1]", "np.linalg.slogdet(K)[1]", LEE5),
        (f"{F}/solve.py", "self.log_det_hard() - self.log_det_H", "self.log_det_hard() + self.log_det_H", LEE5),
        (f"{F}/rigid.py", "R, p = before @ model.R @ A", "R, p = before @ model.R", LEE7),
        (f"{F}/rigid.py", "log_det_H + 2 * np.linalg.slogdet(own", "log_det_H + 0 * np.linalg.slogdet(own", LEE7),
        (f"{F}/parameters.py", "beta = (t(2, 3) * d(3, 3) - t(3, 3) * d(2, 3))", "beta = (t(2, 3) * d(3, 3) + t(3, 3) * d(2, 3))", LEE7),
        (f"{F}/parameters.py", "- 2 * along * turn / r2**2", "- along * turn / r2**2", LEE7),
        (f"{F}/parameters.py", "(sa * p[..., 0] - ca * p[..., 1]) / s", "(sa * p[..., 0] + ca * p[..., 1]) / s", LEE7),
        (f"{F}/parameters.py", "(cb * p[..., 1] + sb * p[..., 2]) / s", "(cb * p[..., 1] - sb * p[..., 2]) / s", LEE7),
        (f"{F}/measure.py", "scale = -0.5 *", "scale = -0.25 *", LEE5),
        (f"{F}/measure.py", "(gradient - pieces.gradient(", "(gradient + pieces.gradient(", LEE5),
        (f"{F}/measure.py", "np.hstack([-lie.hat(com), np.eye(3)])", "np.hstack([lie.hat(com), np.eye(3)])", LEE5),
        (f"{F}/measure.py", "return np.eye(3) - np.outer(axis, axis)", "return np.eye(3)", LEE5),
        # Brownian dynamics
        ("motion/brownian.py", "force += 0.5 * kT * weight(q)", "force += 0.25 * kT * weight(q)", LEE5),
        ("motion/brownian.py", "np.sqrt(2 * kT / dt)", "np.sqrt(1.8 * kT / dt)", LEE5),
        ("motion/brownian.py", "(0.5 * dt) * medium", "(0.0 * dt) * medium", LEE5),
        # change of basis
        ("papers/change_of_basis.py", "return -self.T2 @ np.linalg.solve(self.T2.T @ moved", "return self.T2 @ np.linalg.solve(self.T2.T @ moved",
         FEATHERSTONE),
        ("papers/change_of_basis.py", "undo = {\"U\": X_V.T, \"V\": X_U.T}", "undo = {\"U\": X_V.T, \"V\": X_U}", FEATHERSTONE),
        # screws
        ("model/screws.py", "at = np.where(turns[:, None], np.cross(w, v), 0.0)", "at = np.where(turns[:, None], np.cross(v, w), 0.0)", PLOEN),
        ("model/screws.py", "_turned(R, v - np.cross(p, w))", "_turned(R, v + np.cross(p, w))", PLOEN),
    )
]  # fmt: skip


def environment(source: Path) -> dict[str, str]:
    """Python as it would be with these sources installed; machine code of mutants is not mixed with other code."""
    return os.environ | {
        "PYTHONPATH": str(source),
        "TORSOR_CACHE": str(source.parent / "cache"),
        "OMP_NUM_THREADS": "1",
    }


def caught_by(mutation: Mutation, folder: Path) -> str:
    """What notices a mutation; empty: nothing does."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    path = source / "torsor" / mutation.file
    text = path.read_text()
    assert mutation.old in text, f"{mutation.file} has no {mutation.old!r}"
    path.write_text(text.replace(mutation.old, mutation.new, 1))
    options = dict(env=environment(source), cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    rows = subprocess.run([sys.executable, "-c", ROWS, mutation.papers], **options)  # type: ignore[call-overload]
    if rows.returncode:
        return "row: " + rows.stderr.strip().splitlines()[-1][:160]
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    options["cwd"] = ROOT
    run = subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *tests], **options)  # type: ignore[call-overload]
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "test: " + failed[0][:160] if run.returncode and failed else ""


def main(words: list[str]) -> int:
    survivors, found = 0, []
    for mutation in MUTATIONS:
        if words and not any(word in mutation.file for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                by = caught_by(mutation, Path(folder))
            except subprocess.TimeoutExpired:
                by = f"time: more than {LIMIT} s"
        survivors += not by
        found.append({"file": mutation.file, "old": mutation.old, "new": mutation.new, "caught by": by})
        print(
            f"{'caught  ' if by else 'SURVIVES'}  {mutation.file}: {mutation.old!r} -> {mutation.new!r}   {by}",
            flush=True,
        )
        if not words:
            RESULT.write_text(
                json.dumps({"mutations": len(found), "survivors": survivors, "found": found}, indent=1) + "\n"
            )
    print(f"{len(found)} mutations, {survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
