"""The train step: the coordinator of workers and parameter servers under TensorFlow's ParameterServerStrategy.

`job` is the whole of it: read it first. `loop` hands shards to workers, `step` is the graph that a worker runs, `embedding` the
tables on the servers, `snapshot` what survives, `export` what is served.
"""
