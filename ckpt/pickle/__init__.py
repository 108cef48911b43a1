"""Pickles without unpickling: a machine that moves inert records, and what torch's
calls in them mean.
"""
