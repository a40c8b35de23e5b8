"""A stiff, damped cable falls: an implicit method in O(n) takes long steps where an explicit one cannot.

python examples/12_stiff_cable.py
"""

import matplotlib.pyplot as plt
import numpy as np

import torsor as ts

n = 200
cable = ts.Model.chain(
    "revolute", n=n, axis=(0, 1, 0), p=(1 / n, 0, 0), mass=0.5 / n, com=(0.5 / n, 0, 0), inertia=(1e-8, 1e-8, 1e-8),
    damping=2e-4, stiffness=0.2, name="cable",
)  # fmt: skip
print("method     steps     tip after 0.5 s, m")
for method, rtol in (("trbdf2", 1e-3), ("esdirk4", 1e-3), ("esdirk4", 1e-5)):
    run = ts.simulate(cable, duration=0.5, rtol=rtol, method=method)
    x, _, z = run["position.link200"][-1]
    print(f"{method:8} {len(run) - 1:6}     ({x:.5f}, {z:.5f})   at rtol {rtol:.0e}")

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for t in np.linspace(0, 0.5, 11):
    places = ts.body_poses(cable, run.at(t)[0])[:, :3, 3]
    ax.plot(places[:, 0], places[:, 2], color=plt.colormaps["viridis"](1.8 * t))
ax.set(xlabel="x, m", ylabel="z, m", aspect="equal")
figure.savefig("cable.png", dpi=150)
