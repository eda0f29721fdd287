"""A service process as Fleet sees one: it answers health checks and ends as its arguments say.

stand_in.py PORT SERVICE [--exit-at-once CODE] [--never-ready] [--ignore-term] [--grandchild]
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port")
    parser.add_argument("service")
    parser.add_argument("--exit-at-once", type=int)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--grandchild", action="store_true")
    arguments = parser.parse_args()
    say(f"hello from {os.environ['STAND_IN_NAME']}")
    if arguments.exit_at_once is not None:
        sys.stderr.write("about to fail\n")
        return int(arguments.exit_at_once)
    if arguments.grandchild:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        say(f"grandchild {sleeper.pid}")
    asked = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if arguments.ignore_term else lambda *_: asked.set())
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    statuses = health_pb2.HealthCheckResponse
    servicer.set(arguments.service, statuses.NOT_SERVING if arguments.never_ready else statuses.SERVING)
    server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    server.start()
    asked.wait()
    say("drained")
    server.stop(None).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
