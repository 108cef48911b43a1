"""GGUF, the files of llama.cpp: read, never written."""
