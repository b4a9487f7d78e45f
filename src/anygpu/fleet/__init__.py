"""Devices of other machines, through Ray; the optional extra `ray`."""
