"""What a checkpoint says about itself, and how sure that is."""
