"""Quantised weights of several tensors as one logical tensor: shown, compared, and
taken back to floats.
"""
