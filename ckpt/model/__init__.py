"""What a checkpoint is: its nodes, tensors, places and names, its limits and its errors."""
