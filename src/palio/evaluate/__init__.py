"""Success rates with their n and interval, pass@k, comparisons, floors, the report of a run."""
