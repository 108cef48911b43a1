"""The elements of tensors: read in blocks, cast, measured, compared."""
