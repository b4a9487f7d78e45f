"""What is going on, and what it costs: fed by receipts and by looks at devices. It decides nothing."""
