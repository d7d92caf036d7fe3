"""Which quantity warns of trouble in training, how long before, at a fixed rate of false alarms."""
