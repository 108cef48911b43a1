"""What the commands that write share: the edited checkpoint, its names, its files, and the report."""
