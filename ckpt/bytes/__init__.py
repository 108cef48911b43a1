"""Reading and writing bytes: sources, locations, safe writing, and executors."""
