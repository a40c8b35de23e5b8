"""What long runs do to energy and momentum: a free body with a limb that swings, in space, by four methods.

python examples/05_a_million_steps.py                                takes a second
python examples/05_a_million_steps.py 1000000 long_run.png           takes a few minutes
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import torsor as ts
from torsor.view.style import lines, style

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
picture = sys.argv[2] if len(sys.argv) > 2 else "long_run.png"
STEP, POINTS = 0.005, 1000

builder = ts.Model.builder("ship", gravity=(0, 0, 0))
builder.add("hull", joint="free", mass=2.0, com=(0.05, 0, 0.1), inertia=(0.1, 0.2, 0.25))
builder.add("limb", parent="hull", joint="revolute", axis=(0, 1, 0), p=(0.2, 0, 0), mass=0.5, com=(0.2, 0, 0),
            inertia=(0.01, 0.01, 0.02))  # fmt: skip
ship = builder.build()
v0 = [0.5, -0.8, 1.1, 0.064, -0.092, -0.132, -0.9]  # its mass centre rests
METHODS = {
    "dopri5, rtol 1e-6": {"method": "dopri5", "rtol": 1e-6},
    "symplectic-euler": {"method": "symplectic-euler", "step": STEP},
    "verlet": {"method": "verlet", "step": STEP},
    "variational": {"method": "variational", "step": STEP},
}

with style():
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    for (name, options), (colour, dashes) in zip(METHODS.items(), lines()):
        run = ts.simulate(ship, None, v0, steps * STEP, dt=max(1, steps // POINTS) * STEP, **options)
        energy = np.abs(run.energy / run.energy[0] - 1)
        p = ts.momentum(ship, run.q, run.v)
        momentum = np.abs(p - p[0]).max(axis=1) / np.abs(p[0]).max()
        tenth = len(energy) // 10
        print(f"{name:18} energy error {energy[:tenth].max():.1e} at first, {energy[-tenth:].max():.1e} at last; "
              f"momentum {momentum[-tenth:].max():.1e}")  # fmt: skip
        for axes, error in ((above, energy), (below, momentum)):
            so_far = np.maximum.accumulate(error)[1:]
            axes.loglog(run.t[1:] / STEP, so_far, color=colour, linestyle=dashes, label=name)
    above.set_ylabel("largest relative energy error so far")
    below.set_ylabel("largest relative momentum error so far")
    below.set_xlabel(f"steps of {STEP} s")
    above.legend()
    figure.savefig(picture, dpi=150)
