"""The units of a model's numbers, as words: torsor shows them beside numbers and never converts."""

from __future__ import annotations

from typing import NamedTuple

from torsor.errors import ModelError

# words for mass length^2 / time^2, and for that per length
ENERGY = {("kg", "m", "s"): ("J", "N"), ("amu", "nm", "ps"): ("kJ/mol", "kJ/mol/nm")}


class Units(NamedTuple):
    """The units of mass, length and time, as words, and the units derived from them."""

    mass: str = "kg"
    length: str = "m"
    time: str = "s"

    @classmethod
    def of(cls, words: str) -> Units:
        """Units from words such as "amu, nm, ps"; SI for an empty string."""
        if not words:
            return cls()
        parts = [part.strip() for part in words.split(",")] if isinstance(words, str) else []
        if len(parts) != 3 or not all(parts):
            raise ModelError(f'units are three words, mass, length and time, such as "amu, nm, ps"; not {words!r}')
        return cls(*parts)

    @property
    def energy(self) -> str:
        return ENERGY.get(self, (f"{self.mass} {self.length}^2/{self.time}^2",))[0]

    @property
    def force(self) -> str:
        return ENERGY.get(self, ("", f"{self.mass} {self.length}/{self.time}^2"))[1]

    @property
    def torque(self) -> str:
        """The unit of a force times an arm: N m; outside SI, that of energy."""
        return "N m" if self == Units() else self.energy
