"""Where a model comes from: sources, pinned assets, shape-exact random models, facts of its config."""
