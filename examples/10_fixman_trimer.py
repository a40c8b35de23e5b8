"""Rigid bonds bias a molecule; Fixman's force takes the bias away.

    python examples/10_fixman_trimer.py        # draws fixman_trimer.png

Three equal masses on two bonds, free in space, at temperature kT.  If the bonds are stiff springs, every cosine of the
angle between them is as likely as any other.  If they are rigid it is weighed by sqrt(4 - cos^2), the square root of
det H22 (Fixman 1974).  Both distributions are sampled here by dynamics: draw velocities, move, look, draw again.
"""

import matplotlib.pyplot as plt
import numpy as np

import torsor as ts
from torsor.view.style import BLUE, ORANGE, style

KT, MOLECULES, DRAWS, STEPS, STEP = 1.0, 4000, 160, 4, 0.05

# The middle mass slides along x, y and z; on it two arms, each a point mass at unit distance, swing freely.
builder = ts.Model.builder("trimer", gravity=(0, 0, 0), allow_degenerate=True)
builder.add("x", joint="prismatic", axis=(1, 0, 0))
builder.add("y", joint="prismatic", axis=(0, 1, 0), parent="x")
builder.add("middle", joint="prismatic", axis=(0, 0, 1), parent="y", mass=1.0)
builder.add("left", joint="universal", parent="middle", mass=1.0, com=(0, 0, 1))
builder.add("right", joint="universal", parent="middle", mass=1.0, com=(0, 0, 1))
trimer = builder.build()

accelerations = ts.compile(trimer, ts.forward_dynamics)


def force(q, corrected):
    """-grad kT/2 log det H22, which is -grad kT/2 (log det M - log det G)."""
    return ts.fixman_force(trimer, q, kT=KT) if corrected else np.zeros_like(q)


def move(q, v, corrected):
    """The dynamics for a while, by fourth-order Runge-Kutta steps."""
    for _ in range(STEPS):
        slopes = [(v, accelerations(q, v, force(q, corrected)))]
        for part in (0.5, 0.5, 1.0):
            qk, vk = (x + part * STEP * dx for x, dx in zip((q, v), slopes[-1]))
            slopes.append((vk, accelerations(qk, vk, force(qk, corrected))))
        q, v = (x + STEP / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip((q, v), *slopes, strict=True))
    return q


def cosine(q):
    """Of the angle between the arms."""
    (x1, y1), (x2, y2) = (q[:, [3, 4]].T, q[:, [5, 6]].T)
    return np.sin(y1) * np.sin(y2) + np.cos(y1) * np.cos(y2) * np.cos(x1 - x2)


def sample(corrected, rng):
    """How the molecule lies in space is all the same: each draw begins with the arms on the equator, far from poles."""
    c = rng.uniform(-1, 1, MOLECULES)
    seen = []
    for _ in range(DRAWS):
        q = np.zeros((MOLECULES, trimer.nq))
        q[:, 3], q[:, 5] = np.arccos(c) / 2, -np.arccos(c) / 2
        c = np.clip(cosine(move(q, ts.sample_velocities(trimer, q, rng, kT=KT), corrected)), -1, 1)
        seen.append(c)
    return np.concatenate(seen[DRAWS // 4 :])


rng = np.random.default_rng(0)
x = np.linspace(-1, 1, 201)
rigid = np.sqrt(4 - x**2)
curves = {"rigid bonds": rigid / np.trapezoid(rigid, x), "rigid bonds and Fixman's force": np.full_like(x, 0.5)}
with style():
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for panel, (name, density), corrected in zip(panels, curves.items(), (False, True)):
        seen = sample(corrected, rng)
        heights, edges, _ = panel.hist(
            seen, bins=16, range=(-1, 1), density=True, color=BLUE, alpha=0.4, label="sampled"
        )
        panel.plot(x, density, color=ORANGE, label="closed form")
        panel.set(title=name, xlabel=r"$\cos\theta$", ylim=(0.42, 0.54))
        error = np.abs(heights / np.interp((edges[1:] + edges[:-1]) / 2, x, density) - 1)
        print(f"{name:32} histogram and closed form differ by {error.mean():.1%} on average, {error.max():.1%} at most")
    panels[0].set_ylabel("density")
    panels[0].legend()
    figure.savefig("fixman_trimer.png", dpi=150)
