"""The two ways to train and serve: our loop from scratch, and transformers with TRL and PEFT."""
