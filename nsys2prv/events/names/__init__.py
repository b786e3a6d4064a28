"""Names as people read them, made from the names that compilers and libraries give."""
