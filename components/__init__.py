"""The steps of the pipeline, and what they share: the feature spec, packed records, storage and the run's folder."""
