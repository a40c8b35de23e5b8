"""An arm follows a cycloid: computed torque, against a table of torques without feedback (Saha 2001, Figures 5 and 6).

python examples/03_tracking.py
"""

import matplotlib.pyplot as plt
import numpy as np

import torsor as ts

arm = ts.zoo.puma_saha()
path = ts.Cycloid(np.zeros(6), np.full(6, np.pi), T=10.0)
times = np.linspace(0, 10, 1001)
goal = np.array([path(t)[0] for t in times])

feedback = ts.ComputedTorque(path, kp=100, kd=20)
table = ts.Table.following(arm, path, times)  # inverse dynamics every 10 ms, straight lines between

runs = {
    "torques from a table": ts.simulate(arm, forces=table, dt=0.01),
    "computed torque": ts.simulate(arm, forces=feedback, dt=0.01),
    "computed torque, with friction": ts.simulate(arm, forces=[feedback, ts.Friction(viscous=2.0)], dt=0.01),
}
figure, axes = plt.subplots(layout="constrained")
print("away from the path, rad            after 5 s   after 10 s")
for name, run in runs.items():
    away = np.abs(run.q - goal).max(axis=1)
    print(f"{name:32} {away[500]:11.1e} {away[-1]:12.1e}")
    axes.semilogy(times[1:], away[1:], label=name)
axes.set(xlabel="time, s", ylabel="away from the path, rad")
axes.legend(frameon=False)
figure.savefig("tracking.png", dpi=150)
