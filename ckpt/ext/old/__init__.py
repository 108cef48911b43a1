"""The format of torch 0.1: a tar archive."""
