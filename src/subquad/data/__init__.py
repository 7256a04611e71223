"""Reading tables, times, texts and sequences of different lengths from users' files, and dividing them into splits."""
