"""PT2 archives of torch.export."""
