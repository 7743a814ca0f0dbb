"""The exit handler: puts the steps' records together into the run's result, and clears what killed processes left."""
