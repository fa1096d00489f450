"""Drivers that run an agent behind one interface, and the guest shim that agents import."""
