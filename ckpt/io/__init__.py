"""Bytes come and go here: where they are read from, how they are written, who does the work."""
