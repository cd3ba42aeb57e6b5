"""A sweep: its file, its plan, its runs."""
