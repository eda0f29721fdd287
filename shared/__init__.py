"""What the two services have in common; it knows neither of them."""
