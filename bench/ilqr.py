"""iLQR swings up the acrobot by public calls alone: derivatives of all steps at once, all step lengths in one rollout.

python bench/ilqr.py     writes bench/results/ilqr.json
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: matrices of two rows gain nothing by threads

import numpy as np
from harness import RESULTS, machine, write

import torsor as ts

N, H, ITERATIONS, LENGTHS = 250, 0.02, 95, np.geomspace(1.0, 1e-3, 10)
ACROBOT, B = ts.zoo.acrobot(damping=0.1), np.array([[0.0], [1.0]])  # only the second joint is driven
TARGET, START = np.array([np.pi, 0.0, 0.0, 0.0]), np.zeros(4)
Q, R, END = np.diag([0.1, 0.1, 0.01, 0.01]), 1e-3 * np.eye(1), np.diag([1000.0, 1000.0, 100.0, 100.0])
ENOUGH = 0.05  # rad and rad/s of the last state: it stands


def cost(x, u):
    """Of trajectories x (..., N + 1, 4) and torques u (..., N, 1)."""
    e = x - TARGET
    running = np.einsum("...ni,ij,...nj->...", e[..., :-1, :], Q, e[..., :-1, :])
    running += np.einsum("...ni,ij,...nj->...", u, R, u)
    return (running + np.einsum("...i,ij,...j", e[..., -1, :], END, e[..., -1, :])) / 2


def forward(K, x, u):
    """Trajectories under the torques u + K (x_ref - x)."""
    law = ts.Feedback(B @ K, x[..., :-1, :], u @ B.T, t=H * np.arange(N))
    path = ts.rollout(ACROBOT, START[:2], START[2:], steps=N, step=H, method="semi-implicit", forces=law)
    new = np.concatenate([path.q, path.v], axis=-1)
    new = np.concatenate([np.broadcast_to(START, (*new.shape[:-2], 1, 4)), new], axis=-2)
    return new, u + np.einsum("...kij,...kj->...ki", K, x[..., :-1, :] - new[..., :-1, :])


def backward(x, u, weight):
    """Gains K and changes k of the torques, with `weight` added to the curvature by them."""
    step = ts.step_derivatives(ACROBOT, x[:-1, :2], x[:-1, 2:], u @ B.T, step=H, method="semi-implicit")
    V, Vx, K, k = END, END @ (x[-1] - TARGET), np.zeros((N, 1, 4)), np.zeros((N, 1))
    for i in reversed(range(N)):
        A, b = step.dx[i], step.dtau[i] @ B
        Qx, Qu = Q @ (x[i] - TARGET) + A.T @ Vx, R @ u[i] + b.T @ Vx
        Qux, Quu = b.T @ V @ A, R + b.T @ V @ b
        K[i], k[i] = Qux / (Quu + weight), -Qu / (Quu + weight)[0]
        Vx = Qx + Qux.T @ k[i] - K[i].T @ (Qu + Quu @ k[i])
        V = Q + A.T @ V @ A - Qux.T @ K[i] - K[i].T @ Qux + K[i].T @ Quu @ K[i]
        V = (V + V.T) / 2
    return K, k


def swing_up():
    """The costs of all iterations, and the last state."""
    many = len(LENGTHS)
    x, u = forward(np.zeros((N, 1, 4)), np.zeros((N + 1, 4)), 0.1 * np.ones((N, 1)))
    costs, weight = [float(cost(x, u))], 1.0
    for _ in range(ITERATIONS):
        K, k = backward(x, u, weight)
        tried = forward(np.broadcast_to(K, (many, N, 1, 4)), np.broadcast_to(x, (many, N + 1, 4)),
                        u + LENGTHS[:, None, None] * k)  # fmt: skip
        found = np.nan_to_num(cost(*tried), nan=np.inf)
        best = int(found.argmin())
        if better := found[best] < costs[-1]:
            x, u = tried[0][best], tried[1][best]
        weight = max(weight / 3, 1e-6) if better else weight * 4
        costs.append(min(float(found[best]), costs[-1]))
    return costs, x[-1]


def main() -> None:
    swing_up()  # compiles
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        costs, end = swing_up()
        seconds.append(time.process_time() - begin)
    error = float(np.abs(end - TARGET).max())
    figures = {
        "nodes": N, "iterations": ITERATIONS, "step lengths": len(LENGTHS),
        "seconds of the processor, min": min(seconds),
        "seconds of the processor, median": float(np.median(seconds)),
        "cost at first": costs[0], "cost at last": costs[-1], "last state, error": error,
    }  # fmt: skip
    print("\n".join(f"{name}: {x:.4g}" for name, x in figures.items()))
    assert error < ENOUGH, "it does not stand"
    write(
        RESULTS / "ilqr.json", {"name": "ilqr", "title": "iLQR swings up the acrobot", "machine": machine(), **figures}
    )


if __name__ == "__main__":
    main()
