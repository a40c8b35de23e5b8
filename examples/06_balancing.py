"""Balancing a cart-pole and an acrobot by LQR: the derivatives of the dynamics give the linear system, SciPy the gain.

python examples/06_balancing.py
"""

import numpy as np
from scipy.linalg import solve_continuous_are

import torsor as ts

# A cart of 1 kg on a rail along x with a pole of 1 m; the cart is driven, the pole is not.
cart_pole = ts.Model.chain(
    ["prismatic", "revolute"], axis=[[1, 0, 0], [0, 1, 0]], mass=[1.0, 0.3], com=[[0, 0, 0], [0, 0, 0.5]],
    inertia=[[0.01] * 3, [0.025, 0.025, 1e-4]], names=["cart", "pole"],
)  # fmt: skip
# Two links of 1 m, the second hinged to the tip of the first; only the joint between them is driven (Spong 1995).
acrobot = ts.Model.chain(
    axis=[0, 1, 0], p=[[0, 0, 0], [0, 0, 1]], mass=1.0, com=[0, 0, 0.5], inertia=[0.08, 0.08, 0.001],
    names=["arm", "legs"], n=2,
)  # fmt: skip


def balanced(model, driven, start):
    """Simulate the model from `start` under the feedback that balances it upright, at q = 0."""
    zero = np.zeros(model.nv)
    A, B = ts.linearize(model, zero, zero, zero)
    B = B[:, [driven]]
    R = np.eye(1)
    K = np.linalg.solve(R, B.T @ solve_continuous_are(A, B, np.diag([10.0, 10.0, 1.0, 1.0]), R))[0]
    gains = np.zeros((model.nv, 2 * model.nv))
    gains[driven] = K

    print(f"\n{model.names[0]} and {model.names[1]}, {model.names[driven]} driven")
    print("  by itself:    eigenvalues", np.round(np.sort(np.linalg.eigvals(A).real), 2))
    print("  with feedback:           ", np.round(np.sort(np.linalg.eigvals(A - np.outer(B, K)).real), 2))
    return ts.simulate(model, start, zero, forces=ts.Feedback(gains), duration=10.0, dt=0.01)


for model, driven, start in ((cart_pole, 0, [0.0, 0.4]), (acrobot, 1, [0.05, -0.1])):
    run = balanced(model, driven, np.array(start))
    for t in (0.0, 1.0, 2.0, 10.0):
        print(f"  t = {t:4.1f} s   q =", np.round(run.q[round(t / 0.01)], 6))
    assert np.abs(run.q[-1]).max() < 0.01
