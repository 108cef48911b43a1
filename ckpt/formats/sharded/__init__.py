"""One checkpoint in several files, with an index."""
