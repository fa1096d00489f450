"""Claim, lease, run, score, judge, report: the validator's loop has its place here."""
