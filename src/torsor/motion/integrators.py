"""The integrators by name.

method="auto" starts with the first method of `AUTOMATIC` and switches to the second where the motion is stiff.
"""

from __future__ import annotations

from torsor.errors import ArgumentError
from torsor.motion import steps
from torsor.motion.adams import Adams
from torsor.motion.fixed import stepped
from torsor.motion.implicit import Esdirk4, TrBdf2
from torsor.motion.radau import RadauIIA
from torsor.motion.rattle import Rattle
from torsor.motion.runge_kutta import DormandPrince, DormandPrince853, Fehlberg45
from torsor.motion.stepper import Stepper
from torsor.motion.structure import EnergyMidpoint, StoermerVerlet, SymplecticEuler, Variational
from torsor.validate import chosen

METHODS: dict[str, type[Stepper]] = {
    "dopri5": DormandPrince,
    "rkf45": Fehlberg45,
    "dop853": DormandPrince853,
    "abm": Adams,
    "radau": RadauIIA,
    "trbdf2": TrBdf2,
    "esdirk4": Esdirk4,
    **{name: stepped(name) for name in steps.METHODS},
    "symplectic-euler": SymplecticEuler,
    "verlet": StoermerVerlet,
    "variational": Variational,
    "midpoint": EnergyMidpoint,
    "rattle": Rattle,
}
AUTOMATIC = ("dopri5", "esdirk4")
RENAMED = {"euler": "symplectic-euler", "implicit": "implicit-euler"}  # names of torsor 0.1


def method_named(name: str) -> type[Stepper]:
    """The integrator with this name; for "auto", the first one."""
    if isinstance(name, str) and name in RENAMED:
        raise ArgumentError(f"method {name!r} is called {RENAMED[name]!r} now")
    chosen("method", name, ("auto", *METHODS))
    return METHODS[AUTOMATIC[0] if name == "auto" else name]
