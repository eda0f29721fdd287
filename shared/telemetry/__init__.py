"""What a service tells about itself: logs and metrics."""
