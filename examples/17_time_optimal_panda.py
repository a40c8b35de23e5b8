"""The quickest motion of a Panda between two configurations, within its torques, speeds and joint limits.

The duration is one of the unknowns of a problem that CasADi states and IPOPT solves; torsor computes the dynamics of
all nodes in one call, with exact sparse derivatives. Direct collocation by the trapezoidal rule.

python examples/17_time_optimal_panda.py        (needs CasADi: pip install 'torsor[casadi]')
"""

import casadi as ca
import numpy as np

import torsor as ts

arm = ts.zoo.panda()
# of Franka Emika's data sheet
EFFORT = np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0])[:, None]
SPEED = np.array([2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61])[:, None]
LOWER = np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973])[:, None]
UPPER = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])[:, None]
START = np.array([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785])
GOAL = np.array([1.5, 0.6, -0.4, -1.2, 0.5, 2.2, -0.8])
NODES = 41

inverse = ts.to_casadi(arm, ts.inverse_dynamics, nodes=NODES)  # accelerations are unknowns, torques are bounded
T = ca.MX.sym("T")
q, v, a = (ca.MX.sym(name, 7, NODES) for name in "qva")
h = T / (NODES - 1)
steps = [x[:, 1:] - x[:, :-1] - h / 2 * (rate[:, 1:] + rate[:, :-1]) for x, rate in ((q, v), (v, a))]
ends = [q[:, 0] - START, v[:, 0], q[:, -1] - GOAL, v[:, -1]]
torques = inverse(q, v, a) / EFFORT  # in shares of what the motors give

rough = 1e-4 * h * ca.sumsqr(a)  # a little against trembling where torques do not matter
problem = {"x": ca.veccat(T, q, v, a), "f": T + rough, "g": ca.veccat(*steps, *ends, torques)}
options = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes", "tol": 1e-6}}
solver = ca.nlpsol("quickest", "ipopt", problem, options)

along = np.linspace(START, GOAL, NODES).T
far = np.full((7, NODES), 1e4)
zeros = np.zeros((14 * (NODES - 1) + 28, 1))
found = solver(
    x0=ca.veccat(2.0, along, np.zeros((14, NODES))),
    lbx=ca.veccat(0.1, LOWER + 0 * far, -SPEED + 0 * far, -far),
    ubx=ca.veccat(10.0, UPPER + 0 * far, SPEED + 0 * far, far),
    lbg=ca.veccat(zeros, np.full((7, NODES), -1.0)),
    ubg=ca.veccat(zeros, np.full((7, NODES), 1.0)),
)
stats = solver.stats()
assert stats["success"], stats["return_status"]

motion = ca.Function("motion", [problem["x"]], [T, q, v, torques])(found["x"])
duration, (q, v, shares) = float(motion[0]), (np.array(x).T for x in motion[1:])
print(f"{stats['iter_count']} iterations: from rest to rest in {duration:.3f} s")
print(f"no joint alone could be quicker than {(np.abs(GOAL - START) / SPEED[:, 0]).max():.3f} s at full speed")
print("   t (s)            largest speed   largest torque   (shares of the limits)")
for k in range(0, NODES - 1, 5):
    some, t = slice(k, k + 6), duration * np.array([k, k + 5]) / (NODES - 1)
    print(
        f"  {t[0]:5.3f} to {t[1]:5.3f}  {np.abs(v[some] / SPEED[:, 0]).max():13.2f}  {np.abs(shares[some]).max():15.2f}"
    )
assert np.abs(shares).max() < 1 + 1e-5
