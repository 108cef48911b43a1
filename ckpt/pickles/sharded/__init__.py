"""Tensors of which a file holds only a part."""
