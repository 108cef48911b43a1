"""Reports as pages: which documents stand in one, what of them it draws, and how they are packed."""
