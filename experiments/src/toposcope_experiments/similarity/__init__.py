"""CKA, Procrustes distance and topology divergence: the measures, the probe `similarity` and its section."""
