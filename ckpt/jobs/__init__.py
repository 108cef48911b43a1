"""What the commands do: checkpoints in, a report out. No job opens a file, prints, or knows a format."""
