"""The parts of `adapt`: how text is read, and what a cross-modal model's objectives have learned."""
