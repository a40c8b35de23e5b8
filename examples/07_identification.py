"""Inertial parameters of an arm from a recorded motion: which can be known, how well, and bodies that can exist.

python examples/07_identification.py
"""

from dataclasses import replace

import numpy as np

import torsor as ts

rng = np.random.default_rng(0)
arm = ts.zoo.puma_saha()  # the true arm, known only through its motion
guess = replace(
    arm, mass=arm.mass * rng.uniform(0.5, 2.0, arm.n), inertia=arm.inertia * rng.uniform(0.5, 2.0, (6, 1, 1))
)

# a motion that excites all joints: a few sines per joint, 20 s at 100 Hz, torques measured with 2 % noise
t = np.arange(0, 20, 0.01)[:, None]
w, phase, size = rng.uniform(0.5, 4.0, (3, 6)), rng.uniform(0, 6, (3, 6)), rng.uniform(0.2, 0.6, (3, 6))
q = sum(a * np.sin(k * t + p) for a, k, p in zip(size, w, phase))
v = sum(a * k * np.cos(k * t + p) for a, k, p in zip(size, w, phase))
qdd = sum(-a * k * k * np.sin(k * t + p) for a, k, p in zip(size, w, phase))
tau = ts.inverse_dynamics(arm, q, v, qdd)
tau = tau + 0.02 * tau.std(axis=0) * rng.normal(size=tau.shape)

found = ts.identify(guess, q, v, qdd, tau)
true = found.base.combinations @ arm.inertial_parameters().ravel()
print(f"{arm.n * 10} parameters, of which {len(found.base.names)} combinations have an effect on the torques.")
print(f"\n  {'combination':60} {'found':>9}    {'deviation':7}   {'true':>9}")
for k in np.argsort(found.deviations / np.abs(found.values))[:8]:
    name = found.base.names[k] if len(found.base.names[k]) < 60 else found.base.names[k][:57] + "..."
    print(f"  {name:60} {found.values[k]:9.5f} +- {found.deviations[k]:.5f}     {true[k]:9.5f}")
errors = (found.values - true) / found.deviations
print(f"errors in units of their standard deviations: root mean square {np.sqrt(np.mean(errors**2)):.2f}")
print("masses:", np.round(found.model.mass, 2), " (alone they are not identifiable; all are positive)")

other = (arm.random_configuration(rng, 100), *rng.normal(size=(2, 100, 6)))
miss = [np.abs(ts.inverse_dynamics(m, *other) - ts.inverse_dynamics(arm, *other)).max() for m in (guess, found.model)]
print(f"largest error of predicted torques: {miss[0]:.1f} N m with the guess, {miss[1]:.2f} N m with the model found")
