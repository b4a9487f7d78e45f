"""What hardware there is, as frozen facts: devices, cards, what is missing and why. Nothing here opens a device."""
