"""The formats of torch before 1.0."""
