"""Two hundred arms of which the masses are not known exactly: where do they end?

python examples/09_ensemble.py
"""

import shutil

import numpy as np

import torsor as ts

arm = ts.zoo.panda()
shutil.rmtree("runs.zarr", ignore_errors=True)
study = ts.ensemble(
    arm,
    {"*.density": ts.Normal(mean=1.0, std=0.05), "Friction.coulomb": ts.Uniform(low=0.0, high=1.0)},
    n=200,
    duration=0.5,
    method="implicit-euler",
    step=5e-3,
    forces=[ts.PD([0.5] * 7, kp=100.0, kd=20.0), ts.Friction(coulomb=0.5)],
    store="runs.zarr",
)
q = study["q"][:, -1]
print(f"{study.n} members, {len(study.failed)} failed")
print("\njoint     5 %     half     95 %  of the members are below, rad")
for name, row in zip(arm.names, np.quantile(q, [0.05, 0.5, 0.95], axis=0).T):
    print(f"{name:7}", *(f"{x:7.4f}" for x in row))
study.plot(path="fans.png")
