"""When to stop training a model and train a larger one: the true answer by training, and what predicts it."""
