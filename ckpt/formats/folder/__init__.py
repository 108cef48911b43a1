"""A folder as one checkpoint: the weights, what training needs besides, and the documents about both."""
