"""The algorithms, one file each, written as sweeps (`torsor.sweeps`) over scalars of any type."""
