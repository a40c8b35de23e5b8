"""A rope of 100,000 links: one state, its accelerations and its gradient, and what a longer rope costs.

python examples/11_rope.py
"""

from time import process_time

import numpy as np

import torsor as ts

print("  links   operations per link   energy, J   |gradient by masses|")
for n in (1_000, 10_000, 100_000):
    rope = ts.zoo.rope(n, length=n / 100, mass=n / 1000)
    q = np.random.default_rng(0).normal(scale=0.01, size=rope.nq)
    operations = sum(ts.compile(rope, ts.forward_dynamics, specialised=False).operations)
    pulled = ts.vjp(ts.potential_energy, "inertia")(rope, q, 1.0)
    print(
        f"{n:7}   {operations / n:19.0f}   {ts.potential_energy(rope, q):9.2f}   {np.linalg.norm(pulled.inertia):.4g}"
    )

began = process_time()
acceleration = ts.forward_dynamics(rope, q, np.zeros(rope.nv), np.zeros(rope.nv))
print(
    f"\nforward dynamics of {n} links: {len(acceleration)} accelerations in {process_time() - began:.2f} s, first call"
)
