"""The equations of a cart-pole in symbols, checked against the compiled functions.

python examples/14_closed_form.py
"""

import numpy as np

import torsor as ts

model = ts.zoo.cart_pole()
form = ts.symbolic.closed_form(model)
for name, matrix in (("M", form.M), ("C", form.C), ("g", form.g)):
    print(name, "=", matrix.tolist())
print("\nLaTeX:", form.latex().splitlines()[2])

q, v = np.array([0.3, 2.0]), np.array([0.5, -1.0])
M, C, g = form.evaluate(q, v)
table = {
    "M": (M, ts.mass_matrix(model, q)),
    "C v + g": (C @ v + g, ts.bias_forces(model, q, v)),
    "g": (g, ts.gravity_forces(model, q)),
}
print("\nquantity    largest difference")
for name, (symbols, compiled) in table.items():
    print(f"{name:10}  {np.abs(symbols - compiled).max():.0e}")
