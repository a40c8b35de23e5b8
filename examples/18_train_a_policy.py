"""Learn to balance a double pendulum on a cart by the cross-entropy method: NumPy alone, a few seconds of CPU time.

Machines try small policies side by side, each with masses and damping of its own, so that what is learned does not
depend on one machine.

python examples/18_train_a_policy.py        (needs Gymnasium: pip install 'torsor[gym]')
"""

import time

import numpy as np

from torsor.gym import VectorEnv

POLICIES, ELITE, STEPS, ROUNDS = 256, 30, 120, 60

rng = np.random.default_rng(0)
ranges = {"mass": (0.8, 1.2), "inertia": (0.8, 1.2), "damping": (0.5, 2.0)}
envs = VectorEnv("InvertedDoublePendulum", POLICIES, randomize=ranges)


def scores(envs, weights):
    """What each policy is paid until its machine falls; at most ten points for each of STEPS actions."""
    seen, _ = envs.reset(seed=int(rng.integers(2**31)))
    total, standing = np.zeros(len(weights)), np.ones(len(weights), bool)
    for _ in range(STEPS):
        place_angles_speeds = seen[:, [0, 1, 2, 5, 6, 7]]
        seen, rewards, ended, _, _ = envs.step(np.tanh(np.einsum("ij,ij->i", weights, place_angles_speeds))[:, None])
        total += standing * rewards
        standing &= ~ended
        if not standing.any():
            break
    return total


print("round   median score   best score   most points")
begin = time.perf_counter()
mean, spread = np.zeros(6), np.full(6, 3.0)
for k in range(1, ROUNDS + 1):
    tried = mean + spread * rng.standard_normal((POLICIES, 6))
    found = scores(envs, tried)
    best = tried[found.argsort()[-ELITE:]]
    mean, spread = best.mean(axis=0), best.std(axis=0) + 0.3 / k
    if k % 5 == 0:
        print(f"{k:5d}   {np.median(found):12.1f}   {found.max():10.1f}   {10 * STEPS:11d}")
    if np.median(found) > 9 * STEPS:
        break
print(f"{time.perf_counter() - begin:.1f} s")

test = VectorEnv("InvertedDoublePendulum", 200, randomize=ranges)
found = scores(test, np.broadcast_to(mean, (200, 6)))
print(f"the policy keeps {(found > 9 * STEPS).sum()} of 200 other machines up for {STEPS} actions")
assert (found > 9 * STEPS).mean() > 0.5
