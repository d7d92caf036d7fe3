"""Whether the topology of merged weights, which stand for a cool-down, says more of the loss after it."""
