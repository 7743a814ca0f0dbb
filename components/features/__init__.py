"""The feature spec and the one definition of hashing and transforms, shared by ingest, training and serving.

`spec` says which columns there are, `keys` how a categorical value becomes a 64-bit key, `transforms` what happens to a
dense value, and `graph` does both inside a TensorFlow graph. Only `graph` imports TensorFlow.
"""
