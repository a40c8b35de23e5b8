"""A hand draws a circle: inverse kinematics along the path, a spline through the postures, and a controller.

python examples/13_inverse_kinematics.py
"""

import matplotlib.pyplot as plt
import numpy as np

import torsor as ts

arm = ts.zoo.panda()
start = np.array([0.0, -0.3, 0.0, -2.0, 0.0, 1.7, 0.8])
hand = ts.frame_poses(arm, start, "link7")
angle, times = np.linspace(0, 2 * np.pi, 33), np.linspace(0, 4, 33)
targets = np.repeat(hand[None], 33, axis=0)
targets[:, 1, 3] += 0.1 * np.sin(angle)
targets[:, 2, 3] += 0.1 * (1 - np.cos(angle))

path = ts.Spline.through_poses(arm, "link7", times, targets, start)
run = ts.simulate(arm, path.q[0], duration=4.0, forces=ts.ComputedTorque(path, kp=400, kd=40), dt=0.02)
drawn = run["position.link7"]
center, wanted = hand[:3, 3] + [0, 0, 0.1], 0.1
away = np.abs(np.linalg.norm(drawn - center, axis=1) - wanted)
print(f"33 postures; the hand stays within {1e3 * away.max():.2f} mm of the circle of {wanted} m")
print("largest torques, N m:", np.abs(run.tau).max(axis=0).round(1))

figure, ax = plt.subplots(figsize=(4, 4), layout="constrained")
ax.plot(drawn[:, 1], drawn[:, 2], label="hand")
ax.plot(targets[:, 1, 3], targets[:, 2, 3], "o", markersize=3, label="targets")
ax.set(xlabel="y, m", ylabel="z, m", aspect="equal")
ax.legend(frameon=False)
figure.savefig("circle.png", dpi=150)
