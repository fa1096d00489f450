"""Stages that train on what the model itself did in the world: distillation and Dr. GRPO."""
