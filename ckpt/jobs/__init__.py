"""The work of the commands: checkpoints in, a report out. No job opens a file, prints, or knows a format."""
