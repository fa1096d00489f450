"""One problem end to end, and a suite end to end with concurrency, time-outs and resume."""
