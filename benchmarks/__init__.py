"""Time and peak memory of the book's functions next to named peers, measured in the same run."""
