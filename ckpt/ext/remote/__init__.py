"""Checkpoints behind a URL, read by byte ranges: web servers, Hugging Face, object
stores. Loaded for a URL only.
"""
