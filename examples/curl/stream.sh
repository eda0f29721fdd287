#!/usr/bin/env bash
# Baton from a shell: stream.sh [TARGET]. Needs buf (https://buf.build); the server tells its own schema by reflection.
# Prints each message as JSON, as it comes. A call that fails prints its status and details, and ends the script.
set -euo pipefail

target=${1:-localhost:50051}
here=$(cd "$(dirname "$0")" && pwd)
buf=$(command -v buf || echo "$here/../../.venv/bin/buf")

# Where nobody answers, buf says that there is no such service.
(exec 3<>"/dev/tcp/${target%:*}/${target##*:}") 2>/dev/null || {
  echo "failed: UNAVAILABLE: nothing listens at $target" >&2
  exit 1
}

call() {
  "$buf" curl --protocol grpc --http2-prior-knowledge --timeout 60s --data "$2" \
    "http://$target/baton.v1.GenerationService/$1"
}

echo "== stream"
call StreamGenerate '{
  "text": "The capital of France is",
  "sampling": {"temperature": 0},
  "stopping": {"maxTokens": 24}
}'

# A JSON Schema is a string in the request: its quotes are escaped.
echo "== chat"
schema='{
  "type": "object",
  "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
  "required": ["city", "country"],
  "additionalProperties": false
}'
escaped=${schema//\"/\\\"}
call Generate '{
  "chat": {"messages": [{"role": "user", "content": "Name one capital city and its country."}]},
  "sampling": {"temperature": 0, "jsonSchema": "'"${escaped//$'\n'/}"'"},
  "stopping": {"maxTokens": 64}
}'

echo "== completions"
call Generate '{
  "text": "Rivers are",
  "sampling": {"temperature": 0.8, "seed": 7, "n": 2},
  "stopping": {"maxTokens": 6},
  "output": {"logprobs": 1}
}'
