"""The five papers: every row of `torsor papers` holds, and oracles written from the papers alone.

The oracles share no code with torsor: matrices in absolute coordinates, complex steps and the papers' own recursions in
plain NumPy, on machines whose masses and lengths all differ.
"""

import re
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import oracle
import pytest
from machines import difference
from scipy.linalg import block_diag, expm

import torsor as ts
from torsor import zoo
from torsor.dynamics import closed_forms
from torsor.dynamics.fixman.points import relax_planar
from torsor.dynamics.fixman.rigid import relax
from torsor.model import JOINTS
from torsor.papers import PAPERS, arithmetic, featherstone1999, figures, lee2005, lee2007, rows, saha_udut
from torsor.zoo.lee2007 import dh_columns

ROUNDING = 1e-11  # relative: dense algebra on machines of condition up to 1e4
DIFFERENCED = 1e-8  # relative: one central difference of fourth order


# The rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_holds(paper, monkeypatch):
    """Times are shown, not judged; here of short chains."""
    monkeypatch.setattr(featherstone1999, "EXPONENTS", (6, 8, 10))
    monkeypatch.setattr(lee2005, "LONG", (10, 20, 40))
    monkeypatch.setattr(lee2007, "LONG", (10, 20))
    monkeypatch.setattr(lee2007, "DENSE", (10, 20))
    monkeypatch.setattr(lee2005, "REPLICAS", 4000)
    found = list(rows.every_row(PAPERS[paper].PARTS))
    assert len(found) > 25
    assert {row.verdict for row in found} <= set(rows.VERDICTS)
    assert not [row for row in found if not row.holds]
    for row in found:
        if row.verdict == rows.OURS:
            assert row.printed.startswith(("-", "announced", '"similar')), row


def test_rows_notice_what_changes():
    a, b = np.arange(1.0, 5.0), np.arange(1.0, 5.0) + 1e-3
    assert rows.identity("", "", a, a).holds
    assert not rows.identity("", "", a, b).holds
    assert rows.numbers("", "", a, b, 2e-3).holds
    assert not rows.numbers("", "", a, b, 1e-4).holds
    assert rows.table("", "", a, b, 2e-3).computed == "4 met"
    assert not rows.table("", "", a, [1, 2, 3, 9], 2e-3).holds
    assert not rows.ours("", "", a, b, 1e-4).holds
    assert rows.misprint("", "", "", b, a, a).holds
    assert not rows.misprint("", "", "", a, a, a).holds  # as printed it is right: no misprint
    assert not rows.misprint("", "", "", b, b, a).holds  # the correction is wrong
    assert not rows.identity("", "", a * np.nan, a).holds
    assert not rows.misprint("", "", "", b, a * np.nan, a).holds


def test_curves_of_the_figure_of_depth_are_its_data(tmp_path, monkeypatch):
    """The work of the sweeps is a line of slope one; every curve is a column of the file, or a ratio of two."""
    shown = []

    @contextmanager
    def panels(path, *sizes):
        with figures.panels(path, *sizes) as axes:
            shown.extend(axes)
            yield axes

    monkeypatch.setattr(featherstone1999, "panels", panels)
    monkeypatch.setattr(featherstone1999, "EXPONENTS", (4, 6, 7))
    path = featherstone1999._figure_of_depth(tmp_path / "depth.png")
    n, levels, longest, work, sweeps = np.loadtxt(path.with_suffix(".csv"), delimiter=",", skiprows=1).T
    assert np.array_equal(n, [16, 64, 128])
    assert np.array_equal(sweeps / n, np.full(3, sweeps[0] / n[0]))
    expected = [[levels], [longest, sweeps], [work / sweeps]]
    for axes, curves in zip(shown, expected, strict=True):
        for line, curve in zip(axes.lines, curves, strict=True):
            assert difference(line.get_xydata().T, np.array([n, curve])) < 1e-12


def test_rows_of_many_digits_notice_the_last_ones():
    """Twenty digits less those that may be lost: a relative difference of 1e-14 is seen."""
    with arithmetic.digits(20):
        x = arithmetic.given(np.arange(1.0, 5.0))
        for apart, said in (("0", "equal"), ("1e-16", "equal"), ("1e-14", "not equal")):
            row = rows.identity("", "", x, x * (1 + mpmath.mpf(apart)))
            assert (row.computed, row.holds) == (said, said == "equal")


def test_every_mutant_of_the_papers_finds_its_line():
    """`bench/mutants.py` can put each of bench/mutants.toml into the sources there are."""
    root = Path(__file__).parent.parent
    groups = tomllib.loads((root / "bench" / "mutants.toml").read_text())["mutants"]
    assert sum(len(group["lines"]) for group in groups) >= 60
    for group in groups:
        text = (root / "src" / "torsor" / group["file"]).read_text()
        assert not [was for was, became in group["lines"] if was not in text or was == became], group["file"]


def test_every_part_survives_the_exception_of_another():
    def broken():
        yield rows.identity("1", "before", [1.0], [1.0])
        raise ValueError("no such thing\nas it was")

    def sound():
        yield rows.identity("2", "after", [1.0], [1.0])

    found = list(rows.every_row([broken, sound]))
    assert [row.holds for row in found] == [True, False, True]
    assert found[1].verdict == rows.FAILED
    assert found[1].computed == "ValueError: no such thing"


def test_rows_that_are_timed_hold_whatever_the_time_is():
    assert rows.timed("Fig. 2", "time", "O(n)", "p = 9").holds


# The map -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
SECTION = re.compile(r"^### (.*?)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
NUMBERED = {
    "Ploen & Park": 68,
    "Saha": 28,
    "Lee, Wang & Chirikjian 2007": 28,
    "Lee & Chirikjian 2005": 25,
    "Featherstone & Fijany": 16,
}


def test_every_numbered_equation_has_a_place():
    """Each number of each paper is in one row of docs/papers.md."""
    sections = dict(SECTION.findall((ROOT / "docs" / "papers.md").read_text()))
    for paper, last in NUMBERED.items():
        numbers = []
        for row in re.findall(r"^\| ([^|]+) \|", sections[paper], re.MULTILINE):
            row = re.sub(r"(refs|Fig\.|section|4\.4).*", "", row)
            for first, end in re.findall(r"(?<![\w.])(\d+)(?:-(\d+))?(?![\w.])", row):
                numbers += range(int(first), int(end or first) + 1)
        numbers = [n for n in numbers if n <= last]
        assert sorted(set(numbers)) == list(range(1, last + 1)), paper


def test_functions_of_the_map_are_there():
    """`file.py`: `name`, `name`, ... : the file defines the names."""
    text = (ROOT / "docs" / "papers.md").read_text()
    found = re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", text)
    assert len(found) > 40
    for file, names in found:
        source = (ROOT / "src" / "torsor" / file).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b.*=", source, re.MULTILINE), f"{name} in {file}"
    for name in re.findall(r"`zoo\.(\w+)`", text):
        assert name in zoo.names()


# Ploen & Park ------------------------------------------------------------------------------------------------


def lagrange(model, q, v, qdd, V_0, dV_0):
    """tau = d/dt dT/dv - dT/dq + dU/dq on a base that moves, from link Jacobians: T is a sum over absolute velocities.

    At the instant the base's frame is the frame of reference. Its twist V_0 + t dV_0 is in its own coordinates, and in
    these the kinetic energy has the same value.
    """

    def momenta(q, v, V):
        p, T = np.zeros(model.nv), 0.0
        for (R, place, W, J), m, I, c in zip(oracle.kinematics(model, q), model.mass, model.inertia, model.com):
            omega = W @ v + V[:3]
            velocity = J @ v + V[3:] + np.cross(V[:3], place + R @ c)
            p += m * J.T @ velocity + W.T @ R @ I @ R.T @ omega
            T += (m * velocity @ velocity + omega @ R @ I @ R.T @ omega) / 2
        return p, T

    def slope(f, h=1e-3):
        return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)

    def moving(t):
        return momenta(q + t * v + t * t / 2 * qdd, v + t * qdd, V_0 + t * dV_0)[0]

    force = np.array([slope(lambda h, e=e: momenta(q + h * e, v, V_0)[1]) for e in np.eye(model.nv)])
    weight = sum(-m * J.T @ model.gravity for (_, _, _, J), m in zip(oracle.kinematics(model, q), model.mass))
    return slope(moving) - force + weight


@pytest.mark.parametrize("joints", [("revolute",), ("revolute", "prismatic", "helical", "cylindrical", "universal")])
def test_torques_on_a_moving_base_are_lagranges(joints):
    """Eqs 2-9 with V_0 and dV_0, by every way that takes them."""
    model = zoo.random_tree(6, 3, joints=joints)
    rng = np.random.default_rng(0)
    q, (v, qdd), (V_0, dV_0) = model.random_configuration(rng), rng.normal(size=(2, model.nv)), rng.normal(size=(2, 6))
    expected = lagrange(model, q, v, qdd, V_0, dV_0)
    base = {"base_velocity": V_0, "base_acceleration": dV_0}
    for method in ("newton-euler", "ploen-park"):
        assert difference(ts.inverse_dynamics(model, q, v, qdd, method=method, **base), expected) < DIFFERENCED
    bias = ts.bias_forces(model, q, v, **base)
    assert difference(ts.mass_matrix(model, q) @ qdd + bias, expected) < DIFFERENCED
    assert difference(ts.mass_solve(model, q, expected - bias), qdd) < 1e4 * DIFFERENCED
    moved = closed_forms.com_frames(model)
    for Q in (None, moved):
        assert difference(closed_forms.operators(model, q, v, Q=Q, **base).tau(qdd), expected) < DIFFERENCED


def test_a_moving_base_takes_batches_and_refuses_other_shapes():
    model = zoo.general_arm(4)
    rng = np.random.default_rng(1)
    q, v, qdd = rng.normal(size=(3, 5, 4))
    V_0, dV_0 = rng.normal(size=(2, 5, 6))
    together = ts.inverse_dynamics(model, q, v, qdd, base_velocity=V_0, base_acceleration=dV_0)
    for k in range(5):
        one = ts.inverse_dynamics(model, q[k], v[k], qdd[k], base_velocity=V_0[k], base_acceleration=dV_0[k])
        assert np.array_equal(one, together[k])
    still = ts.inverse_dynamics(model, q, v, qdd, base_velocity=np.zeros(6))
    assert difference(still, ts.inverse_dynamics(model, q, v, qdd)) < ROUNDING
    with pytest.raises(ts.ArgumentError, match=r"base_velocity has shape \(3,\)"):
        ts.inverse_dynamics(model, q, v, qdd, base_velocity=np.zeros(3))
    with pytest.raises(ts.ArgumentError, match=r"base_velocity.*inf|base_velocity\[0\]"):
        ts.body_twists(model, q[0], v[0], base_velocity=np.full(6, np.inf))
    with pytest.raises(ts.ArgumentError, match="base_velocity must have shape"):
        closed_forms.operators(model, q[0], base_velocity=np.zeros(3))


def test_derivatives_by_the_motion_of_the_base():
    """Reverse and forward derivatives of the torques against central differences."""
    model = zoo.random_tree(7, 2, joints=("revolute", "spherical", "prismatic"))
    rng = np.random.default_rng(4)
    q, (v, qdd, weight), (V_0, dV_0) = (
        model.random_configuration(rng),
        rng.normal(size=(3, model.nv)),
        rng.normal(size=(2, 6)),
    )

    def torques(V, dV):
        return ts.inverse_dynamics(model, q, v, qdd, base_velocity=V, base_acceleration=dV)

    gradient = ts.vjp(ts.inverse_dynamics, wrt=("base_velocity", "base_acceleration"))
    found = gradient(model, q, v, qdd, weight, base_velocity=V_0, base_acceleration=dV_0)
    h = 1e-4  # torques are quadratic in V_0 and linear in dV_0
    for k, e in enumerate(h * np.eye(6)):
        slope = (torques(V_0 + e, dV_0) - torques(V_0 - e, dV_0)) @ weight / (2 * h)
        assert abs(found.base_velocity[k] - slope) < DIFFERENCED * np.abs(found.base_velocity).max()
        slope = (torques(V_0, dV_0 + e) - torques(V_0, dV_0 - e)) @ weight / (2 * h)
        assert abs(found.base_acceleration[k] - slope) < DIFFERENCED * np.abs(found.base_acceleration).max()


def hat(w):
    return np.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])


def Ad(T):
    R, p = T[:3, :3], T[:3, 3]
    return np.block([[R, np.zeros((3, 3))], [hat(p) @ R, R]])


def ad(V):
    return np.block([[hat(V[:3]), np.zeros((3, 3))], [hat(V[3:]), hat(V[:3])]])


def screw_matrix(S):
    return np.block([[hat(S[:3]), S[3:, None]], [np.zeros((1, 4))]])


@pytest.mark.parametrize("joints", [("revolute",), ("revolute", "prismatic")])
def test_forward_dynamics_by_equations_40_to_68_written_again(joints):
    """The recursions of section VI with Q = 1 and their corrections, against a mass matrix of link Jacobians."""
    model = zoo.random_chain(7, 2, joints=joints)
    n, rng = model.n, np.random.default_rng(0)
    q, v, tau = rng.normal(size=(3, n))
    slides = np.array([JOINTS[code].name == "prismatic" for code in model.joint])
    S = np.array([np.r_[np.zeros(3), a] if s else np.r_[a, np.zeros(3)] for a, s in zip(model.axis, slides)])
    M = [np.block([[R, p[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]]) for R, p in zip(model.R, model.p)]
    X = [np.linalg.inv(Ad(M[i] @ expm(screw_matrix(S[i] * q[i])))) for i in range(n)]  # Ad of f^-1
    J = []
    for m, c, I in zip(model.mass, model.com, model.inertia):
        J.append(np.block([[I - m * hat(c) @ hat(c), m * hat(c)], [-m * hat(c), m * np.eye(3)]]))
    J_hat = [None] * n
    for i in reversed(range(n)):  # Eq. 40
        J_hat[i] = J[i]
        if i + 1 < n:
            K, s = J_hat[i + 1], S[i + 1]
            J_hat[i] = J[i] + X[i + 1].T @ (K - np.outer(K @ s, s @ K) / (s @ K @ s)) @ X[i + 1]
    a_hat, V, alpha, moved = np.zeros(6), np.zeros(6), np.zeros(6), []
    for k in range(n):  # 50-57
        a_hat = X[k] @ ((S[k - 1] * v[k - 1] if k else 0) + a_hat)
        V = X[k] @ V + S[k] * v[k]
        a = -ad(S[k] * v[k]) @ a_hat
        if k == 0:
            a = a + X[0] @ np.r_[np.zeros(3), -model.gravity]
        alpha = X[k] @ alpha + a
        moved.append(J[k] @ alpha - ad(V).T @ J[k] @ V)
    P, reduced = np.zeros(6), np.zeros(n)
    for k in reversed(range(n)):  # 58-61
        P = (X[k + 1].T @ P if k + 1 < n else 0) + moved[k]
        reduced[k] = tau[k] - S[k] @ P
    omega = [S[k] @ J_hat[k] @ S[k] for k in range(n)]
    Pi = [X[k].T @ J_hat[k] @ S[k] / omega[k] for k in range(n)]
    Y = [X[k].T @ (np.eye(6) - np.outer(J_hat[k] @ S[k], S[k]) / omega[k]) for k in range(n)]
    z, c = np.zeros(6), np.zeros(n)
    for k in reversed(range(n)):  # 62-65
        z = Y[k + 1] @ z + Pi[k + 1] * reduced[k + 1] if k + 1 < n else np.zeros(6)
        c[k] = reduced[k] - S[k] @ z
    d, lam, qdd = c / omega, np.zeros(6), np.zeros(n)
    for k in range(n):  # 66-68
        qdd[k] = d[k] - (Pi[k] @ lam if k else 0)
        lam = (Y[k].T @ lam if k else 0) + S[k] * d[k]
    independent = np.linalg.solve(
        oracle.mass_matrix(model, q), tau - lagrange(model, q, v, np.zeros(n), *np.zeros((2, 6)))
    )
    assert difference(qdd, independent) < 1e3 * DIFFERENCED
    assert difference(ts.forward_dynamics(model, q, v, tau, method="ploen-park"), qdd) < ROUNDING


# Saha --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stanford", "puma_saha", "puma560"])
def test_U_and_D_are_those_of_an_elimination_of_link_jacobians(name):
    model = zoo.get(name)
    q = model.random_configuration(3)
    M = oracle.mass_matrix(model, q) + np.diag(model.armature)
    L, U, D = M.copy(), np.eye(6), np.zeros(6)
    for k in reversed(range(6)):  # from the last column backwards
        D[k] = L[k, k]
        U[:k, k] = L[:k, k] / D[k]
        L = L - np.outer(L[:, k], L[k]) / D[k]
    found = saha_udut.decompose(saha_udut.denoc(model, q))
    assert difference(found.U, U) < ROUNDING
    assert difference(found.D, D) < ROUNDING
    b = np.arange(1.0, 7.0)
    assert difference(ts.mass_solve(model, q, b, method="udut"), np.linalg.solve(M, b)) < ROUNDING


# Lee, Wang & Chirikjian --------------------------------------------------------------------------------------


def dh_mass_matrix(name, soft, angles):
    """M of a chain of Eq. 23 by a complex step: K = sum (m x'x + omega' I omega) / 2 with T_k^c written out."""
    data = dh_columns(name)
    beta, gamma = np.radians(data["alpha"]), np.radians(data["theta"])
    n, h = len(beta), 1e-30

    def centres(step):
        b, g = (beta + angles + step, gamma) if soft == "beta" else (beta, gamma + angles + step)
        pose, result = np.eye(4, dtype=complex), []
        for k in range(n):
            cb, sb, cg, sg = np.cos(b[k]), np.sin(b[k]), np.cos(g[k]), np.sin(g[k])
            length, offset = data["a"][k], data["d"][k]
            top = [[cg, -sg, 0, length], [sg * cb, cg * cb, -sb, -offset * sb], [sg * sb, cg * sb, cb, offset * cb]]
            pose = pose @ np.array([*top, [0, 0, 0, 1]])
            result.append((pose[:3, :3], pose[:3, 3] + pose[:3, :3] @ np.array(data["com"][k])))
        return result

    M, place = np.zeros((n, n)), centres(np.zeros(n))
    rates = [centres(1j * h * e) for e in np.eye(n)]
    for k, (m, moments) in enumerate(zip(data["mass"], data["inertia"])):
        R = place[k][0].real
        velocity = np.array([rate[k][1].imag / h for rate in rates])
        omega = []
        for rate in rates:
            W = R.T @ (rate[k][0].imag / h)
            omega.append([W[2, 1], W[0, 2], W[1, 0]])
        omega = np.array(omega)
        M += m * velocity @ velocity.T + omega @ np.diag(moments) @ omega.T
    return M


@pytest.mark.parametrize(("name", "soft"), [("puma_lee", "beta"), ("puma_lee", "gamma"), ("polypeptide", "beta")])
def test_chains_of_the_paper_by_complex_steps_through_equation_23(name, soft):
    model = zoo.puma_lee(soft) if name == "puma_lee" else zoo.polypeptide()
    q = np.random.default_rng(2).uniform(-1, 1, model.nv)
    M = dh_mass_matrix(name, soft, q)
    assert difference(ts.mass_matrix(model, q), M) < ROUNDING
    b = np.ones(model.nv)
    data = lee2007.dh_table(name)
    data["x"][:, 1 if soft == "beta" else 2] += q
    relaxed = lee2007.relax_dh(soft=soft, **data)
    for solved in (relaxed.solve(b), relax(model, q).solve(b), ts.mass_solve(model, q, b, method="fixman")):
        assert difference(M @ solved, b) < 1e3 * ROUNDING
    assert abs(relaxed.log_det() - np.linalg.slogdet(M)[1]) < 1e3 * ROUNDING


# Lee & Chirikjian --------------------------------------------------------------------------------------------


def points_mass_matrix(mass, theta, L, free=False):
    """G of (theta, L), or with x_0 first, by a complex step through Eq. 14."""
    n, h = len(theta), 1e-30

    def places(y):
        start, t, l = (y[:2], y[2 : 2 + n], y[2 + n :]) if free else (np.zeros(2), y[:n], y[n:])
        angle = np.cumsum(t)
        x = start + np.cumsum(l[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1), axis=0)
        return np.vstack([start, x]) if free else x

    y = np.concatenate([np.zeros(2) if free else [], theta, L]).astype(complex)
    J = np.stack([places(y + 1j * h * e).imag.ravel() / h for e in np.eye(len(y))], axis=-1)
    return J.T @ (np.repeat(mass, 2)[:, None] * J)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_point_chains_by_complex_steps(n, free):
    """M, M^-1 and Fixman's theorem (Eq. 8), for masses and lengths that differ; N + 1 masses if free."""
    rng = np.random.default_rng(n)
    mass, theta, L = rng.uniform(0.5, 3, n + free), rng.uniform(-3, 3, n), rng.uniform(0.3, 2, n)
    G = points_mass_matrix(mass, theta, L, free)
    f = n + 2 * free
    M, H = G[:f, :f], np.linalg.inv(G)
    assert np.isclose(np.linalg.slogdet(G)[1] + np.linalg.slogdet(H[f:, f:])[1], np.linalg.slogdet(M)[1])
    model = zoo.point_chain(n, mass=mass, length=L, free=free)
    q = np.concatenate([[0.0, 0.0] if free else [], theta])
    assert difference(ts.mass_matrix(model, q), M) < ROUNDING
    relaxed = relax_planar(mass, theta, L, free=free)
    for inverse in (relaxed.inverse(), ts.inverse_mass_matrix(model, q, method="fixman")):
        assert difference(inverse @ M, np.eye(f)) < 1e3 * ROUNDING
    assert np.isclose(relaxed.log_det(), np.linalg.slogdet(M)[1])
    assert np.isclose(relaxed.log_det_hard(), np.linalg.slogdet(H[f:, f:])[1])
    v, tau = rng.normal(size=(2, f))
    expected = ts.forward_dynamics(model, q, v, tau, method="articulated")
    assert difference(ts.forward_dynamics(model, q, v, tau, method="fixman"), expected) < 1e3 * ROUNDING


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mass": [1.0, 2.0]}, r"mass must have shape \(\) or \(3,\)"),
        ({"mass": [1.0, 0.0, 1.0]}, "mass must be positive"),
        ({"length": np.ones((3, 1))}, "length must have shape"),
        ({"free": 1}, "free"),
        ({"free": True, "mass": np.ones(3)}, r"mass must have shape \(\) or \(4,\)"),
        ({"mass": np.nan}, "mass must be finite"),
    ],
)
def test_point_chains_that_cannot_be_are_refused(options, words):
    with pytest.raises(ts.ArgumentError, match=words):
        zoo.point_chain(3, **options)


# Featherstone & Fijany ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [False, True])
def test_equations_13_to_16_in_absolute_coordinates(fixed):
    """P of ones and minus ones, as printed, with link Jacobians about the base's origin; I_X any map of each body."""
    model = zoo.random_chain(6, 4, joints=("revolute", "prismatic", "universal", "spherical"))
    if fixed:
        model = replace(zoo.random_chain(6, 4), gravity=np.zeros(3))
    n, rng = model.n, np.random.default_rng(0)
    q, tau = model.random_configuration(rng), rng.normal(size=model.nv)
    S1, inertias = [], []
    for (R, p, W, V), m, I, c in zip(oracle.kinematics(model, q), model.mass, model.inertia, model.com):
        x = p + R @ c
        S1.append(np.vstack([W, V - np.cross(W, x, axis=0)]))  # the velocity of the body's point at the origin
        inertias.append(np.block([[R @ I @ R.T - m * hat(x) @ hat(x), m * hat(x)], [-m * hat(x), m * np.eye(3)]]))
    S1, I = np.vstack(S1), block_diag(*inertias)
    P = np.eye(6 * n) - np.eye(6 * n, k=-6)
    H = P @ S1
    perps, maps = [], []
    for i in range(n):
        h = H[6 * i : 6 * i + 6, model.v_start[i] : model.v_start[i + 1]]
        assert (
            np.abs(np.delete(H[6 * i : 6 * i + 6], np.s_[model.v_start[i] : model.v_start[i + 1]], axis=1)).max()
            < ROUNDING
        )
        perps.append(np.linalg.svd(h)[0][:, h.shape[1] :])
        A = rng.normal(size=(6, 6))
        maps.append(A @ A.T + np.eye(6))
    T2 = P.T @ block_diag(*perps)
    I_X = block_diag(*maps)
    T1 = P.T @ I_X @ H @ np.linalg.inv(H.T @ I_X @ H)
    inverse = np.linalg.inv(I)
    held = inverse @ T2 @ np.linalg.solve(T2.T @ inverse @ T2, T2.T @ inverse)
    M = oracle.mass_matrix(model, q)
    expected = np.linalg.solve(M, tau)
    assert difference(S1.T @ I @ S1, M) < ROUNDING  # Eq. 15
    assert difference(T1.T @ (inverse - held) @ T1 @ tau, expected) < 1e2 * ROUNDING  # Eq. 16
    assert difference(ts.mass_solve(model, q, tau, method="constraint-force"), expected) < 1e2 * ROUNDING


@pytest.mark.parametrize("seed", range(3))
def test_side_branches_by_constraint_forces_and_link_jacobians(seed):
    """Section 4: bodies off the main chain are articulated bodies on it."""
    model = zoo.random_tree(12, seed, branching=0.5)
    rng = np.random.default_rng(seed)
    q, tau = model.random_configuration(rng), rng.normal(size=model.nv)
    expected = np.linalg.solve(oracle.mass_matrix(model, q), tau)
    assert difference(ts.mass_solve(model, q, tau, method="constraint-force"), expected) < 1e2 * ROUNDING
