"""What notebooks show: HTML without scripts and styles."""
