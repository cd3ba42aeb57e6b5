"""Whole runs: data, model, objectives, and the call to `train`; one kind of run a file."""
