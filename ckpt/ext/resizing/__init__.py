"""`ckpt warmstart --on-mismatch pad|interpolate`: vocabularies that grew, and position
embeddings of another grid.
"""
