"""The elements of tensors: reading in blocks, casting, measuring, comparing."""
