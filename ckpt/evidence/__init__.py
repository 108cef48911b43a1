"""The evidence that a checkpoint gives about itself, and how sure it is."""
