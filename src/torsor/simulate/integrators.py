"""The integrators by name."""

from __future__ import annotations

from torsor.simulate.adams import Adams
from torsor.simulate.implicit import Esdirk4, ImplicitEuler, TrBdf2
from torsor.simulate.radau import RadauIIA
from torsor.simulate.runge_kutta import DormandPrince, DormandPrince853, Fehlberg45
from torsor.simulate.stepper import Stepper
from torsor.simulate.structure import SemiImplicitEuler, StoermerVerlet, Variational
from torsor.validate import chosen

METHODS: dict[str, type[Stepper]] = {
    "dopri5": DormandPrince,
    "rkf45": Fehlberg45,
    "dop853": DormandPrince853,
    "abm": Adams,
    "radau": RadauIIA,
    "trbdf2": TrBdf2,
    "esdirk4": Esdirk4,
    "implicit-euler": ImplicitEuler,
    "euler": SemiImplicitEuler,
    "verlet": StoermerVerlet,
    "variational": Variational,
}


def method_named(name: str) -> type[Stepper]:
    """The integrator of that name."""
    return METHODS[chosen("method", name, METHODS)]
