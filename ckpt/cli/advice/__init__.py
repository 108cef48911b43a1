"""The commands that findings and errors name: planned first, so that only what works is printed."""
