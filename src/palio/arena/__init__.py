"""Rules of the race as pure functions; the service over a store comes beside them."""
