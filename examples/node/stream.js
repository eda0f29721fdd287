// Baton from Node.js: node stream.js [TARGET [PROMPT]]

import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { errorInfo } from "./errors.js";

const [target = "localhost:50051", prompt = "The capital of France is"] = process.argv.slice(2);
const TIMEOUT_MS = 60_000;

const definition = protoLoader.loadSync("baton/v1/generation.proto", {
  includeDirs: [fileURLToPath(new URL("../../protos", import.meta.url))],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
  defaults: true,
  arrays: true,
});
const { baton } = grpc.loadPackageDefinition(definition);
const client = new baton.v1.GenerationService(target, grpc.credentials.createInsecure());

// Ctrl-C cancels the call that runs, which ends its work on the server.
let running = null;
process.once("SIGINT", () => {
  running?.cancel();
  process.exitCode = 130;
});

const withDeadline = () => ({ deadline: Date.now() + TIMEOUT_MS });

/** One answer of a method that does not stream. */
function call(method, request) {
  return new Promise((resolve, reject) => {
    running = client[method](request, withDeadline(), (error, response) => (error ? reject(error) : resolve(response)));
  });
}

/** A completion, printed as it comes. Iterating raises what the call fails with. */
async function stream() {
  running = client.StreamGenerate(
    { text: prompt, sampling: { temperature: 0 }, stopping: { max_tokens: 24 } },
    withDeadline(),
  );
  for await (const message of running) {
    if (message.event === "delta") process.stdout.write(message.delta.text);
  }
  console.log();
}

const CITY_SCHEMA = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 }, country: { type: "string", maxLength: 20 } },
  required: ["city", "country"],
  additionalProperties: false,
};

/** An answer that is JSON of a schema, whatever the model would have liked to say. */
async function chat() {
  const { completions: [completion] } = await call("Generate", {
    chat: { messages: [{ role: "user", content: "Name one capital city and its country." }] },
    sampling: { temperature: 0, json_schema: JSON.stringify(CITY_SCHEMA) },
    stopping: { max_tokens: 64 },
  });
  const { city, country } = JSON.parse(completion.text);
  console.log(`${city}, ${country}`);
}

/** Two completions of one prompt, and how likely each of their tokens was. */
async function completions() {
  const response = await call("Generate", {
    text: "Rivers are",
    sampling: { temperature: 0.8, seed: 7, n: 2 },
    stopping: { max_tokens: 6 },
    output: { logprobs: 1 },
  });
  for (const completion of response.completions) {
    console.log(`${completion.index}: ${JSON.stringify(completion.text)}`);
    for (const { token, alternatives: [mostLikely] } of completion.logprobs) {
      const logprob = token.logprob.toFixed(3);
      console.log(`   ${logprob} ${JSON.stringify(token.text)}, most likely ${JSON.stringify(mostLikely.text)}`);
    }
  }
}

/** What went wrong, and whether another request, or the same one later, may go well. */
function explain(error) {
  const info = errorInfo(error);
  const status = grpc.status[error.code] ?? "error";
  const fields = info ? Object.entries(info.metadata).map(([key, value]) => `${key}=${value}`).join(" ") : "";
  return `\nfailed: ${status} ${info?.reason ?? ""}: ${error.details ?? error.message} ${fields}`.trimEnd();
}

try {
  for (const task of [stream, chat, completions]) {
    if (process.exitCode) break; // by Ctrl-C
    console.log(`== ${task.name}`);
    await task();
  }
} catch (error) {
  process.exitCode ||= 1;
  console.error(explain(error));
} finally {
  client.close();
}
