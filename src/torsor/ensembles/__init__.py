"""Many members of one machine: random parameters, motions side by side in SIMD lanes, results in a Zarr store."""

from torsor.ensembles.draws import Distribution, LogNormal, Normal, Uniform
from torsor.ensembles.exchange import Exchange, Replicas, Tempering
from torsor.ensembles.places import StoreError
from torsor.ensembles.ray import RayExecutor
from torsor.ensembles.study import Study, ensemble

__all__ = [
    "Distribution", "Exchange", "LogNormal", "Normal", "RayExecutor", "Replicas", "StoreError", "Study", "Tempering",
    "Uniform", "ensemble",
]  # fmt: skip
