"""The learning rate of every step: as logged, declared, as in siblings, or recognised."""
