"""References of the images that the steps run in; the environment chooses them, before this is imported."""

import os

REGISTRY = os.environ.get("PARASERVE_IMAGE_REGISTRY", "ghcr.io/paraserve")
TAG = os.environ.get("PARASERVE_IMAGE_TAG", "0.1.0")

LIGHT = f"{REGISTRY}/paraserve:{TAG}"
"""For the steps that need no TensorFlow: ingest, register, finish."""
TENSORFLOW = f"{REGISTRY}/paraserve-tensorflow:{TAG}"
"""For train, evaluate and deploy."""
