"""Hardware as frozen facts: devices, cards, what is missing and why. Nothing here opens a device."""
