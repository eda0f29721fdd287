"""Computes steps: models, their ops, the runner and its captures. Knows no requests, no gRPC, no policies."""
