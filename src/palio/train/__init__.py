"""Training: text and masks, model, base documents, supervised fine-tuning, serving."""
