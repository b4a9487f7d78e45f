"""Small modules that every other package may use: units, printing, private folders, locks, processors."""
