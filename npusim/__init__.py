"""npusim."""
