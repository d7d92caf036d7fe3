"""Phases of representation geometry during pretraining (Li et al. 2025), and whether diagrams turn where spectra do."""
