"""`python -m decode_service`: one decode service, until SIGTERM or Ctrl-C."""

import sys

from decode_service.server import DecodeServer
from shared.config.load import load_decode
from shared.worker.main import run_service

if __name__ == "__main__":
    sys.exit(run_service("decode", load_decode, DecodeServer))
