"""Swing an acrobot up with the least torque: CasADi and IPOPT find the motion, torsor gives exact derivatives.

Trapezoidal collocation: the accelerations at all nodes are one call.

python examples/16_acrobot_swing_up.py        (needs CasADi: pip install 'torsor[casadi]')
"""

import casadi as ca
import numpy as np

import torsor as ts

# Two links of 1 m, the second hinged to the tip of the first; only the joint between them is driven (Spong 1995).
acrobot = ts.Model.chain(
    axis=[0, 1, 0], p=[[0, 0, 0], [0, 0, -1]], mass=1.0, com=[0, 0, -0.5], inertia=[0.08, 0.08, 0.001],
    names=["arm", "legs"], n=2,
)  # fmt: skip
INTERVALS, DURATION = 200, 4.0
h = DURATION / INTERVALS

accelerations = ts.to_casadi(acrobot, ts.forward_dynamics, nodes=INTERVALS + 1)
q, v, u = (ca.MX.sym(name, rows, INTERVALS + 1) for name, rows in (("q", 2), ("v", 2), ("u", 1)))
a = accelerations(q, v, ca.vertcat(ca.MX.zeros(1, INTERVALS + 1), u))
now, then = slice(0, INTERVALS), slice(1, INTERVALS + 1)
steps = [q[:, then] - q[:, now] - h / 2 * (v[:, now] + v[:, then]),
         v[:, then] - v[:, now] - h / 2 * (a[:, now] + a[:, then])]  # fmt: skip
ends = [q[:, 0], v[:, 0], q[:, INTERVALS] - np.array([np.pi, 0.0]), v[:, INTERVALS]]
effort = h * ca.sumsqr(u)

problem = {"x": ca.veccat(q, v, u), "f": effort, "g": ca.veccat(*steps, *ends)}
solver = ca.nlpsol("swing_up", "ipopt", problem, {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes"}})
guess = np.linspace([0.0, 0.0], [np.pi, 0.0], INTERVALS + 1).T
start = ca.veccat(guess, np.zeros((2, INTERVALS + 1)), np.zeros((1, INTERVALS + 1)))
found = solver(x0=start, lbg=0, ubg=0)
stats = solver.stats()
assert stats["success"], stats["return_status"]

motion = ca.Function("motion", [problem["x"]], [q, v, u])(found["x"])
q, v, u = (np.array(x).T for x in motion)
print(f"{stats['iter_count']} iterations; integral of the squared torque {float(found['f']):.2f} N^2 m^2 s")
print("   t (s)   arm (deg)   legs (deg)   torque (N m)")
for k in range(0, INTERVALS + 1, 25):
    print(f"  {k * h:6.2f}  {np.degrees(q[k, 0]):9.1f}  {np.degrees(q[k, 1]):11.1f}  {u[k, 0]:13.2f}")

# How good are straight lines between the nodes? Every interval, simulated from its first node: all at once.
middle = (u[1:] + u[:-1]) / 2
forces = ts.Constant(np.column_stack([0 * middle, middle]))
path = ts.rollout(acrobot, q[:-1], v[:-1], steps=20, step=h / 20, every=20, method="rk4", forces=forces)
miss = np.degrees(np.abs(path.q[:, 0] - q[1:]).max())
print(f"simulated, every interval ends within {miss:.2f} degrees of its last node")
assert miss < 1.0
