"""A pendulum swings up by the gradient of a rollout; the best torques found are drawn.

python examples/08_swing_up.py
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import torsor as ts

pendulum, steps, h = ts.zoo.pendulum(damping=0.1), 100, 0.02
t, options = h * np.arange(steps), dict(steps=steps, step=h, every=steps, method="rk4")


def force(torques):
    """Torques, each held for one step."""
    return ts.Table(t, torques[:, None], "previous")


def loss(torques):
    """How far from upright and at rest, plus the effort; and its gradient."""
    end = ts.rollout(pendulum, [0.0], [0.0], forces=force(torques), **options)
    q, v = end.q[-1, 0] - np.pi, end.v[-1, 0]
    seed = [[100 * q]], [[10 * v]]
    slope = ts.vjp(ts.rollout)(pendulum, [0.0], [0.0], seed, forces=force(torques), **options).tau[:, 0]
    return 50 * q**2 + 5 * v**2 + h * torques @ torques, slope + 2 * h * torques


found = minimize(loss, 0.1 * np.ones(steps), jac=True, method="L-BFGS-B", options={"maxiter": 200})
run = ts.simulate(pendulum, [0.0], duration=steps * h, forces=force(found.x), dt=h)
print(f"{found.nfev} gradients; ends at {np.degrees(run.q[-1, 0]):.1f} degrees with {run.v[-1, 0]:.2f} rad/s")
print(f"largest torque {np.abs(found.x).max():.1f} N m; holding the rod level takes 4.9 N m")

figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(6, 4), layout="constrained")
above.plot(run.t, np.degrees(run.q[:, 0]))
above.set_ylabel("angle, degrees")
below.step(t, found.x, where="post")
below.set(ylabel="torque, N m", xlabel="time, s")
figure.savefig("swing_up.png", dpi=150)
