"""What experiments on many small networks share: their training as one model, their comparison, their page."""
