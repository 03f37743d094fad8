"""What is done for a processor beyond torch: steps of small dense models in C."""
