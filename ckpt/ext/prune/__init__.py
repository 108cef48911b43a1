"""`ckpt prune`: the checkpoints of a run that may go, and why the others stay."""
