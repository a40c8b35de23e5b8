"""A function of an arm as C for a controller: the files, and what they cost.

python examples/15_export.py
"""

import re

import torsor as ts

arm = ts.zoo.puma560()
print("function                     multiplications  additions  bytes of C")
for function in (ts.gravity_forces, ts.inverse_dynamics, ts.forward_dynamics, ts.vjp(ts.forward_dynamics)):
    name = re.sub(r"\W+", "_", function.__name__).strip("_")
    paths = ts.export(arm, function, f"c/{name}", name=f"puma_{name}")
    count = ts.compile(arm, function).operations
    size = next(path for path in paths if path.suffix == ".c" and path.name != "example.c").stat().st_size
    print(f"{function.__name__:28} {count.mul:15} {count.add:10} {size:11}")
print("\ncc -std=c99 -O2 c/gravity_forces/example.c c/gravity_forces/puma_gravity_forces.c -lm -o hold && ./hold")
