"""torch.save before 1.6: a stream of pickles."""
