"""Machines of the papers and families of chains, ready to use: `zoo.puma560()`, `zoo.get("puma560")`.

A machine is a TOML file beside this one, with its source; `families.py` builds the chains of any length.
"""

from __future__ import annotations

from torsor.model.zoo.families import general_arm, point_chain, random_chain, random_tree, rope

__all__ = ["general_arm", "point_chain", "random_chain", "random_tree", "rope"]
