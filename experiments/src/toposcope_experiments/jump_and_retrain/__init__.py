"""How far loss and weights return after a random jump: the probe `jump_and_retrain`."""
