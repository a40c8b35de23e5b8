"""A long run: recorded as it goes, interrupted, resumed, and conserving energy all the way.

python examples/04_long_run.py
"""

from pathlib import Path

import numpy as np

import torsor as ts

chain = ts.zoo.point_chain(2)
file = Path("double_pendulum.traj")
file.unlink(missing_ok=True)

# Stoermer-Verlet: fixed steps, reversible; every tenth step is recorded, a chunk of rows at a time.
run = ts.Simulation(chain, [-1.0, 0.3], method="verlet", step=0.005, dt=0.05, file=file, chunk=64)
run.run(40.0)
# The process may die at any moment here: what was written stays, and the run goes on to the same bits.
resumed = ts.Simulation.resume(file)
motion = resumed.run(100.0)

error = np.abs(motion.energy - motion.energy[0]) / motion.kinetic_energy.max()
for part, piece in (("first", error[:200]), ("last", error[-200:])):
    print(f"largest energy error in the {part} 10 s: {piece.max():.1e} of the kinetic energy")
motion.plot(["energy"], "double_pendulum.png")
print(f"{len(motion)} rows in {file}, {file.stat().st_size} bytes")
