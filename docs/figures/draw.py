"""The figures of the concepts and of the gallery.

python docs/figures/draw.py             all, beside this file
python docs/figures/draw.py frames      some
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.linalg import solve_continuous_are

import torsor as ts
from torsor.view.style import BLUE, GREEN, GREY, ORANGE, lines, style

FOLDER = Path(__file__).parent


# Concepts ----------------------------------------------------------------------------------------------------


def frames() -> Figure:
    """Two bodies, their frames at their joints, and the placement of the second in the first."""
    figure, ax = plt.subplots(figsize=(7.0, 3.2), layout="constrained")
    q1, q2, length = 0.45, -0.9, 1.0
    joints = [np.zeros(2), length * np.array([np.cos(q1), np.sin(q1)])]
    joints.append(joints[1] + 0.8 * np.array([np.cos(q1 + q2), np.sin(q1 + q2)]))
    for (a, b), colour in zip((joints[:2], joints[1:]), (BLUE, ORANGE)):
        ax.plot(*np.transpose([a, b]), color=colour, linewidth=9, alpha=0.3, solid_capstyle="round")
    for point, angle, name in ((joints[0], 0.0, "base"), (joints[0], q1, "body 1"), (joints[1], q1 + q2, "body 2")):
        colour = {"base": GREY, "body 1": BLUE, "body 2": ORANGE}[name]
        for k, axis in enumerate("xz"):
            tip = 0.32 * np.array([np.cos(angle + k * np.pi / 2), np.sin(angle + k * np.pi / 2)])
            ax.annotate("", point + tip, point, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.6})
            ax.text(*(point + 1.15 * tip), axis, color=colour, ha="center", va="center")
        offset = {"base": (0.02, -0.16), "body 1": (0.55, 0.08), "body 2": (0.02, -0.16)}[name]
        ax.text(*(point + offset), name, color=colour)
    for point in joints[:2]:
        ax.plot(*point, "o", color="white", markeredgecolor="black", markersize=8, zorder=3)
    ax.text(*np.add(joints[0], [0.36, 0.05]), "$q_1$")
    middle = (joints[0] + joints[1]) / 2
    ax.text(*np.add(middle, [-0.14, 0.14]), "$f_{12} = (R, p)\\, e^{S q_2}$", rotation=np.degrees(q1), ha="center")
    ax.plot(*joints[2], "s", color=GREEN)
    ax.text(*(joints[2] + [0.06, -0.02]), 'frame "hand"', color=GREEN)
    ax.set(xlim=(-0.35, 2.1), ylim=(-0.3, 1.0), aspect="equal")
    ax.axis("off")
    return figure


def tangent() -> Figure:
    """A unit circle of configurations, and the tangent line along which velocities lie."""
    figure, ax = plt.subplots(figsize=(7.0, 3.2), layout="constrained")
    angle = np.linspace(0.15, np.pi - 0.15, 200)
    ax.plot(np.cos(angle), np.sin(angle), color=BLUE)
    q, v = np.array([np.cos(1.9), np.sin(1.9)]), 1.15 * np.array([np.sin(1.9), -np.cos(1.9)])
    moved = np.array([np.cos(1.9 - 1.15), np.sin(1.9 - 1.15)])
    ax.annotate("", q + v, q, arrowprops={"arrowstyle": "->", "color": ORANGE, "linewidth": 1.6})
    for point, words, offset in ((q, "$q$", (-0.08, 0.05)), (moved, "model.integrate(q, v)", (0.05, 0.03))):
        ax.plot(*point, "o", color=BLUE)
        ax.text(*(point + offset), words)
    ax.text(*np.add(q + v, [0.03, 0.02]), "$q + N(q)\\,v$: not a rotation", color=ORANGE)
    ax.text(-0.85, 0.25, "unit quaternions,\nnq = 4 numbers", color=BLUE)
    ax.text(*np.add(q, [0.12, 0.32]), "velocities,\nnv = 3 numbers", color=ORANGE)
    ax.set(xlim=(-1.7, 2.0), ylim=(0.0, 1.6), aspect="equal")
    ax.axis("off")
    return figure


def methods() -> Figure:
    """What accuracy costs: the error after 2 s of a double pendulum against the evaluations it took."""
    model, start = ts.zoo.double_pendulum(), [2.0, 1.0]
    exact = ts.simulate(model, start, duration=2.0, method="dop853", rtol=1e-13, atol=1e-13).q[-1]
    figure, ax = plt.subplots(figsize=(7.0, 3.6), layout="constrained")

    def measured(name: str, **options: object) -> tuple[int, float]:
        run = ts.Simulation(model, start, method=name, **options)
        end = run.run(2.0).q[-1]
        return run.stepper.evaluations, float(np.abs(end - exact).max())

    adaptive = {
        name: [measured(name, rtol=rtol, atol=rtol / 1e3) for rtol in 10.0 ** -np.arange(3, 11)]
        for name in ("dopri5", "dop853", "abm", "esdirk4", "radau")
    }
    fixed = {
        name: [(round(2.0 / h) * calls, measured(name, step=float(h))[1]) for h in np.geomspace(1e-2, 2e-4, 5)]
        for name, calls in (("rk4", 4), ("verlet", 1), ("semi-implicit", 1))
    }
    for (name, points), (colour, dashes), marker in zip((adaptive | fixed).items(), lines(), "os^vdos^"):
        ax.loglog(*np.transpose(points), color=colour, linestyle=dashes, marker=marker, label=name, markersize=4)
    ax.set_xlabel("evaluations of the dynamics")
    ax.set_ylabel("error of q after 2 s, rad")
    ax.legend(ncols=2, fontsize=8)
    return figure


# Gallery -----------------------------------------------------------------------------------------------------


def strobe(ax: Axes, run: ts.Trajectory, times: np.ndarray, plane: str = "xz") -> None:
    """The machine at several times, from pale to dark, seen from the side."""
    across = ["xyz".index(axis) for axis in plane]
    model = run.model
    tips = {int(i): 2 * model.com[i] for i in np.flatnonzero(model.children_count == 0)}
    for t, shade in zip(times, np.linspace(0.15, 1.0, len(times))):
        poses = ts.body_poses(model, run.at(t)[0])
        for i, parent in enumerate(model.parent):
            if parent >= 0:
                link = np.transpose([poses[parent, :3, 3], poses[i, :3, 3]])
                ax.plot(*link[across], color=BLUE, alpha=shade, linewidth=1.3)
            if i in tips:
                end = poses[i, :3, :3] @ tips[i] + poses[i, :3, 3]
                ax.plot(*np.transpose([poses[i, :3, 3], end])[across], color=BLUE, alpha=shade, linewidth=1.3)
    ax.set_aspect("equal")
    ax.set_xlabel(f"{plane[0]}, m")
    ax.set_ylabel(f"{plane[1]}, m")


def double_pendulum() -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 3.4), layout="constrained")
    run = ts.simulate(ts.zoo.double_pendulum(), [2.2, 1.0], duration=12.0, rtol=1e-9)
    t = np.linspace(0, 12, 3000)
    place = ts.frame_poses(run.model, run.at(t)[0], "tip")[:, :3, 3]
    left.plot(place[:, 0], place[:, 2], color=ORANGE, linewidth=0.7)
    strobe(left, run, np.array([0.0]))
    q = np.array([2.2, 1.0]) + 1e-6 * np.arange(20)[:, None]
    many = ts.rollout(run.model, q, 0 * q, steps=12000, step=1e-3, every=40, method="rk4")
    right.plot(many.t, many.q[:, :, 1].T, color=BLUE, linewidth=0.5, alpha=0.6)
    right.set_xlabel("time, s")
    right.set_ylabel("second angle of 20 starts, 1e-6 rad apart")
    return figure


def cable() -> Figure:
    figure, ax = plt.subplots(figsize=(7.0, 3.4), layout="constrained")
    n = 400
    model = ts.Model.chain(
        "revolute", n=n, axis=(0, 1, 0), p=(1 / n, 0, 0), mass=0.5 / n, com=(0.5 / n, 0, 0),
        inertia=(1e-8, 1e-8, 1e-8), damping=2e-4, stiffness=0.2, name="cable",
    )  # fmt: skip
    run = ts.simulate(model, duration=0.8, dt=0.05, rtol=1e-4, method="trbdf2")
    strobe(ax, run, run.t)
    ax.set_title("a cable of 400 links, every 50 ms", loc="left")
    return figure


def cart_pole() -> Figure:
    figure, ax = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
    model, upright = ts.zoo.cart_pole(), np.array([0.0, np.pi])
    A, B = ts.linearize(model, upright, np.zeros(2), np.zeros(2))
    K = B[:, :1].T @ solve_continuous_are(A, B[:, :1], np.diag([1.0, 1.0, 0.1, 0.1]), np.eye(1))
    force = ts.Feedback(np.vstack([K, np.zeros((1, 4))]), x_ref=[0.0, np.pi, 0.0, 0.0])
    run = ts.simulate(model, [1.0, np.pi - 0.5], forces=force, duration=4.0)
    strobe(ax, run, np.linspace(0, 4, 25))
    ax.set_title("a cart-pole is caught by LQR", loc="left")
    return figure


def moving(path: Path) -> None:
    """A hundred double pendulums that start almost alike, moved in one call."""
    count, rate = 100, 15
    start = np.array([2.0, 2.2]) + 1e-2 * np.linspace(-1, 1, count)[:, None]
    run = ts.rollout(
        ts.zoo.double_pendulum(), start, 0 * start, steps=6000, step=1 / 900, every=900 // rate, method="rk4"
    )
    elbow, tip = (run[f"position.{name}"][..., [0, 2]] for name in ("link2", "tip"))
    figure, ax = plt.subplots(figsize=(3.6, 3.6))
    figure.subplots_adjust(0, 0, 1, 1)
    ax.set(xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), aspect="equal")
    ax.axis("off")
    shades = plt.colormaps["viridis"](np.linspace(0, 1, count))
    lines = [ax.plot([], [], color=shade, linewidth=0.8, antialiased=False)[0] for shade in shades]

    def show(k: int) -> None:
        for line, a, b in zip(lines, elbow[:, k], tip[:, k]):
            line.set_data(*np.transpose([(0, 0), a, b]))

    FuncAnimation(figure, show, len(run)).save(path, PillowWriter(rate), dpi=80)


FIGURES = {f.__name__: f for f in (frames, tangent, methods, double_pendulum, cable, cart_pole)}


if __name__ == "__main__":
    with style():
        for name in sys.argv[1:] or [*FIGURES, "moving"]:
            if name == "moving":
                moving(FOLDER / "moving.gif")
                continue
            FIGURES[name]().savefig(FOLDER / f"{name}.png", dpi=150)
            print(f"{name}.png")
