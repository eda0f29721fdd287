"""What both services need of gRPC: server, statuses, options, conversions."""
