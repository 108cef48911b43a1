"""`ckpt slim --ema`: running averages of weights (EMA, SWA) under the names of the
model.
"""
