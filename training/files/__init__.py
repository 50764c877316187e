"""Reading and writing of files: atomic writes, and checks of input files."""
