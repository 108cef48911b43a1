"""safetensors: a JSON header and the data."""
