"""Reading what repeats in a large pickle by regular expressions, where the machine would execute each opcode."""
