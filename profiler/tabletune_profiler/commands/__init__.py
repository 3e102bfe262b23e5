"""The commands on documents, a module each; ``main`` registers them. None of them starts an engine."""
