"""KTO: training on single rollouts that were right or wrong, without pairs."""
