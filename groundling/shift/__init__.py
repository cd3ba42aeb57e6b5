"""Other conditions than a benchmark's own: shifted files, few-shot partitions, zero-shot rules, ensembles."""
