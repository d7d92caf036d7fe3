"""Phases of training by the rule of the published study, and change points with a test."""
