"""Pages in which machines move under your hand, computed in the browser by their own equations of motion.

python examples/19_live_pages.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.linalg import solve_continuous_are

import torsor as ts


def cart_pole():
    """A cart of 1 kg on a rail with a pole of 1 m, and the gains that balance it (see 06_balancing.py)."""
    model = ts.Model.chain(
        ["prismatic", "revolute"], axis=[[1, 0, 0], [0, 1, 0]], mass=[1.0, 0.3], com=[[0, 0, 0], [0, 0, 0.5]],
        inertia=[[0.01] * 3, [0.025, 0.025, 1e-4]], names=["cart", "pole"], name="cart-pole with LQR",
    )  # fmt: skip
    zero = np.zeros(2)
    A, B = ts.linearize(model, zero, zero, zero)
    S = solve_continuous_are(A, B[:, :1], np.diag([10.0, 10.0, 1.0, 1.0]), np.eye(1))
    gains = np.zeros((2, 4))
    gains[0] = B[:, 0] @ S
    return model, np.array([0.0, 0.4]), ts.Feedback(gains)


def rods(n, name):
    """Rods of 1 m and 1 kg, each hinged to the tip of the one before."""
    return ts.Model.chain(
        axis=[0, 1, 0], p=[[0, 0, 0], *[[0, 0, 1]] * (n - 1)], mass=1.0, com=[0, 0, 0.5], inertia=[0.083, 0.083, 1e-3],
        n=n, name=name,
    )  # fmt: skip


# a file's name, a model, where it starts, and what acts on it
MACHINES = {
    "double_pendulum": (rods(2, "double pendulum"), np.array([1.8, 0.6]), ()),
    "acrobot": (rods(2, "acrobot"), np.array([np.pi, 0.3]), ts.Friction(viscous=0.02)),
    "arm": (ts.zoo.panda(), np.array([0.0, 0.4, 0.0, -1.8, 0.0, 2.2, 0.8]), ts.Friction(viscous=0.5)),
    "rag_doll": (ts.zoo.humanoid(), None, ()),
    "rope": (ts.zoo.rope(100), None, ()),
    "cart_pole": cart_pole(),
}

folder = Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="torsor-pages-"))
folder.mkdir(exist_ok=True)
for name, (model, start, forces) in MACHINES.items():
    page = model.view(start, folder / f"{name}.html", live=True, forces=forces)
    print(f"{page}  {page.stat().st_size / 1000:.0f} kB")
