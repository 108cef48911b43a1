"""State dicts as torch takes them apart: one name for each tensor and each object."""
