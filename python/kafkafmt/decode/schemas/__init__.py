"""Where schemas come from: a registry over HTTP, a folder, a map of ids to files, a `_schemas` topic, or one schema."""
