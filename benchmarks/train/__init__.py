"""The train benchmark: ours and its peers in turn on the same data and net, one table from one run (`make bench-train`)."""
