"""The pipeline, its command line and what submits it. Start reading at `train_to_serve`."""
