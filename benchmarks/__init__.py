"""What the commands cost beside their peers: each module is a command that prints a table, none is a test."""
