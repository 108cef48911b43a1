"""Reports as one page of HTML."""
