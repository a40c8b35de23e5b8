"""Many members of one machine: parameters drawn, motions side by side in SIMD lanes, results in a Zarr store."""

from torsor.ensembles.draws import Distribution, LogNormal, Normal, Uniform
from torsor.ensembles.places import StoreError
from torsor.ensembles.ray import RayExecutor
from torsor.ensembles.study import Study, ensemble

__all__ = ["Distribution", "LogNormal", "Normal", "RayExecutor", "StoreError", "Study", "Uniform", "ensemble"]
