"""Heavy, hostile and random inputs: either a valid result or a TorsorError comes out, and nothing else."""
