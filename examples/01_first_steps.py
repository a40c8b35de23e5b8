"""First steps: an arm, the accelerations its motors cause, and the torques behind them.

python examples/01_first_steps.py
"""

import numpy as np

import torsor as ts

arm = ts.zoo.panda()  # a seven-joint arm; ts.load("arm.toml") reads one of your own
print(arm)

# A bent posture, in motion, the motors pushing.
q = np.radians([0.0, -45.0, 0.0, -135.0, 0.0, 90.0, 45.0])
v = np.array([0.2, 0.0, -0.1, 0.3, 0.0, 0.5, 0.0])
tau = np.array([0.0, -20.0, 0.0, 10.0, 0.5, 1.0, 0.0])

qdd = ts.forward_dynamics(arm, q, v, tau)  # torques -> accelerations
back = ts.inverse_dynamics(arm, q, v, qdd)  # accelerations -> torques: those we began with
hold = ts.gravity_forces(arm, q)  # torques that would hold the arm still here

print("""
                   given                forward dynamics   inverse dynamics    gravity
         angle     speed    torque       acceleration           torque      torque to hold
           deg     rad/s       N m            rad/s^2              N m             N m
-------------------------------------------------------------------------------------------""")
for name, *row in zip(arm.names, np.degrees(q), v, tau, qdd, back + 0.0, hold):
    print("{:5} {:8.1f} {:9.2f} {:9.2f} {:18.3f} {:16.2f} {:15.2f}".format(name, *row))

hand = ts.body_poses(arm, q)[-1, :3, 3]
print(f"""
The last link is at ({hand[0]:.3f}, {hand[1]:.3f}, {hand[2]:.3f}) m from the base.
Kinetic energy {ts.kinetic_energy(arm, q, v):.3f} J, potential energy {ts.potential_energy(arm, q):.2f} J.""")

# Leading axes are more states: a hundred postures in one call.
postures = arm.random_configuration(rng=0, size=100)
heaviest = np.abs(ts.gravity_forces(arm, postures)).max(axis=0)
print(f"Largest torque to hold joint 2 in {len(postures)} random postures: {heaviest[1]:.1f} N m.")
