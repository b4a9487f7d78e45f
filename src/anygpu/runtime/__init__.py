"""The runtime: where programs meet devices."""
