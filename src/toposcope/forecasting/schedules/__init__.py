"""The learning rate of every step: as logged, declared, or recognised."""
