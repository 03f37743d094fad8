"""Looking at runs: figures that share one hand."""
