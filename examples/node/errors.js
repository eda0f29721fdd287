// What stands in a failed call's trailer `grpc-status-details-bin`: a google.rpc.Status with details.
// Of their messages only what is read here is described; field numbers are those of google/rpc.

import protobuf from "protobufjs";

const { root } = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`, { keepCase: true });

const Status = root.lookupType("Status");
const ErrorInfo = root.lookupType("ErrorInfo");

/** The ErrorInfo of a failed call: { reason, domain, metadata }; null where the failure is gRPC's own. */
export function errorInfo(error) {
  const [encoded] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!encoded) return null;
  const detail = Status.decode(encoded).details.find((any) => any.type_url.endsWith("/google.rpc.ErrorInfo"));
  return detail ? ErrorInfo.toObject(ErrorInfo.decode(detail.value), { defaults: true }) : null;
}
