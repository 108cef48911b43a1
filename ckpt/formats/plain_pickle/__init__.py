"""Plain pickles of arrays and tensors, and what joblib writes without compression."""
