"""The free fall of the Stanford arm (Saha 2001, Figure 4), to a picture, a table and a page that plays it.

python examples/02_free_fall.py
"""

import numpy as np

import torsor as ts

arm = ts.zoo.stanford()
start = [0, np.pi / 2, 0, 0, 0, 0]  # the second joint at 90 degrees, as in the paper

fall = ts.simulate(arm, start, duration=10.0, method="rkf45", rtol=1e-10, atol=1e-12)
print(f"{len(fall)} steps; the energy stays within {np.ptp(fall.energy):.1e} J of {fall.energy[0]:.2f} J")

print("\n  t, s   theta_2, rad      b_3, m")
for t in (0.5, 0.6, 0.7, 1.0, 10.0):
    q, v = fall.at(t)  # dense output: any time, not only those of the steps
    print(f"{t:6.1f} {q[1]:14.3f} {q[2]:11.3f}")

fall.plot("stanford.png")
fall.to_csv("stanford.csv")
fall.view("stanford.html")  # one file: open it in a browser, or mail it
print("\n-> stanford.png, stanford.csv, stanford.html")
