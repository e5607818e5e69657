"""Long training runs: checkpoints, Keras callbacks and distribution strategies."""
