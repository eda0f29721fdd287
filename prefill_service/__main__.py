"""`python -m prefill_service`: one prefill service, until SIGTERM or Ctrl-C."""

import sys

from prefill_service.server import PrefillServer
from shared.config.load import load_prefill
from shared.worker.main import run_service

if __name__ == "__main__":
    sys.exit(run_service("prefill", load_prefill, PrefillServer))
