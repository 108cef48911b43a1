"""`ckpt salvage`: what is whole of a damaged checkpoint."""
