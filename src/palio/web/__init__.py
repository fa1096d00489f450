"""The read side of everything: has its place here."""
