"""Paths of checkpoints in the plane: diffusion potentials, metric scaling, and the section."""
