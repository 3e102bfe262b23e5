"""What users go through, on real nodes with real engines; a file is a scenario, and can be run alone."""
