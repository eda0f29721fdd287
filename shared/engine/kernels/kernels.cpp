// The ops of shared/engine/ops.py for x86 CPUs. Compiled once for each instruction set (build.py), chosen at run time.
//
// One micro-kernel serves linears, QKᵀ and PV: `tile` multiplies a few rows by some columns of a panel.
//
//   weight panel   [K/2][32][2]      bf16   32 outputs, pairs along K; a weight is [N/32] panels
//   int8 panel     [K/2][32][2]      int8   the same in bytes, and a scale for each output (int8.h)
//   K of a block   [D/2][32][2]      bf16   32 tokens, pairs along the head's dims: a panel whose outputs are tokens
//   V of a block   [D/32][16][32][2] bf16   32 dims, pairs along tokens: D/32 panels whose outputs are dims
//
// So the cache is in the layout that products want, and nothing is gathered or repacked.
//
// Every output is summed over k in one order, whatever the rows beside it, the panel's neighbours and the number of
// threads. Results therefore do not depend on batch, chunking, padding or threads, bit for bit.
//
// All of it is one translation unit whose parts have no names outside (so the headers' namespaces are unnamed): kernels
// for several instruction sets can be loaded in one process, and none finds another's functions or buffers.
#include <algorithm>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "norm_rope.h"

namespace {

enum Kind : int64_t {
  kNorm,
  kLinear,
  kLinearFloat,
  kLinearAdd,
  kLinearSilu,
  kRopeAndWrite,
  kAttention,
  kEmbed,
  kNormAt,
};

// One op on static memory. num_rows 0: the step's tokens; below 0: those of them that want logits.
struct Op {
  int64_t kind;
  const void *x, *w, *extra;  // extra: a bias, the norm of keys, or the tokens that are meant
  void* y;
  int64_t num_rows, num_k, num_outputs, layer;
  double eps;
  const float* scales;  // of int8 weights, one an output; none: weights are bf16
};

template <class W>
void run_linear(Team& team, const Op& op, const W* w, int64_t num_rows) {
  const auto *x = (const Act*)op.x;
  const auto *bias = (const float*)op.extra;
  const Product<W> product{x, w, op.scales, bias, op.y, num_rows, op.num_k, op.num_outputs};
  switch (op.kind) {
    case kLinear: return linear<Act>(team, product);
    case kLinearFloat: return linear<float>(team, product);
    case kLinearAdd: return linear_add(team, product);
    case kLinearSilu: return linear_silu(team, product);
  }
}

void run(Team& team, const Op& op, const Step& step, const Shape& shape, const std::vector<AttentionItem>& items) {
  const int64_t num_rows = op.num_rows > 0 ? op.num_rows : op.num_rows == 0 ? step.num_tokens : step.num_logits;
  const int64_t size = op.num_outputs;
  const auto *x = (const float*)op.x, *w = (const float*)op.w, *extra = (const float*)op.extra;
  const auto eps = (float)op.eps;
  auto* y = (Act*)op.y;
  switch (op.kind) {
    case kNorm: return rmsnorm(team, x, w, y, num_rows, size, eps);
    case kNormAt: return rmsnorm_at(team, x, (const int64_t*)op.extra, w, y, num_rows, size, eps);
    case kEmbed: return embed(team, (const int64_t*)op.x, (const bf16*)op.w, (float*)op.y, num_rows, size);
    case kRopeAndWrite: return rope_and_write(team, y, step, shape, op.layer, {w, extra, eps});
    case kAttention: return attention(team, (const Act*)op.x, step, shape, op.layer, items, y);
  }
  if (op.scales) return run_linear(team, op, (const int8_t*)op.w, num_rows);
  run_linear(team, op, (const bf16*)op.w, num_rows);
}

}  // namespace

extern "C" {

int64_t baton_vector_width() { return kWidth; }
int64_t baton_max_head_dim() { return kMaxHeadDim; }

// Runs ops one after another, all threads on each.
void baton_run(const Op* ops, int64_t num_ops, const Step* step, const Shape* shape, int64_t num_threads) {
  const bool attends = std::any_of(ops, ops + num_ops, [](const Op& op) { return op.kind == kAttention; });
  const auto items = attends ? cut_attention(*step, *shape) : std::vector<AttentionItem>{};
  Team team(num_threads);
#pragma omp parallel num_threads(num_threads)
  for (int64_t i = 0; i < num_ops; i++) run(team, ops[i], *step, *shape, items);
}
}
