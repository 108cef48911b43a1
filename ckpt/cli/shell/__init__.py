"""What ckpt tells others about itself: completions to a shell, pages to man."""
