"""Memory of a GPU. Placeholder until the next change."""
