"""`ckpt report`: the page of HTML."""
