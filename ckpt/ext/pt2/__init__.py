"""PT2 archives: programs of torch.export."""
