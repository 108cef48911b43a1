"""Layouts: how one checkpoint is made of another, as recipes that are found by example,
proved and applied.
"""
