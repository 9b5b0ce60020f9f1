"""What each way in costs, beside the floor that speaks the same, mosquitto, and plain TCP."""
