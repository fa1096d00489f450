"""Two judges that never mix, both over the record: rule-based outcome and reasoning."""
