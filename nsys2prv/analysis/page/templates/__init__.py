"""Files that the page is filled from."""
