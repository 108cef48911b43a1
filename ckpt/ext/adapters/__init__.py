"""Adapters (LoRA): merging them into a base with an account, checking the merges of
others, saying what they are.
"""
