"""`ckpt warmstart`: pretrained weights into another model."""
