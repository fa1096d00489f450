"""The one door between an agent and the world or a model; it writes the record."""
