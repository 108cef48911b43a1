"""torch.save since 1.6: a zip archive."""
