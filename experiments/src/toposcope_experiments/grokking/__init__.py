"""Grokking as a causal control: whether topology of embeddings is a sign of generalisation."""
