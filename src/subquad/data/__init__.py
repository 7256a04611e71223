"""Reading what people have: tables, times, texts, and sequences of different lengths; and cutting them into splits."""
