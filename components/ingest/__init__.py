"""The step ingest: from raw delimited files to packed, split and checked record shards. `job.ingest` is the way through."""
