"""Many members of one machine: parameters drawn, motions side by side in SIMD lanes, results in a Zarr store."""

from torsor.ensembles.draws import Distribution, LogNormal, Normal, Uniform
from torsor.ensembles.study import Study, ensemble
from torsor.ensembles.zarr import StoreError

__all__ = ["Distribution", "LogNormal", "Normal", "StoreError", "Study", "Uniform", "ensemble"]
