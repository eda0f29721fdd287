// The ops of shared/engine/ops.py for x86 CPUs. Compiled once for each instruction set (build.py), chosen at run time.
//
// One micro-kernel serves linears, QKᵀ and PV: `tile` multiplies a few rows by some columns of a panel.
//
//   weight panel   [K/2][32][2]      bf16   32 outputs, pairs along K; a weight is [N/32] panels
//   K of a block   [D/2][32][2]      bf16   32 tokens, pairs along the head's dims: a panel whose outputs are tokens
//   V of a block   [D/32][16][32][2] bf16   32 dims, pairs along tokens: D/32 panels whose outputs are dims
//
// So the cache is in the layout that products want, and nothing is gathered or repacked.
//
// Every output is summed over k in one order, whatever the rows beside it, the panel's neighbours and the number of
// threads. Results therefore do not depend on batch, chunking, padding or threads, bit for bit.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using bf16 = uint16_t;
constexpr int64_t kPanel = 32;  // outputs of a panel, and tokens of a block
constexpr int64_t kMaxHeadDim = 256;

#if defined(__AVX512BF16__)

using Vec = __m512;
using Act = bf16;  // activations: what is multiplied by weights
constexpr int kWidth = 16, kMaxRows = 12;
template <int R>
constexpr int kVectors = 2;  // columns of one pass over a panel, in vectors

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store(bf16* p, Vec v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
inline Vec round(Vec a) { return _mm512_roundscale_ps(a, 0); }
inline Vec times_power_of_two(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
inline float sum(Vec v) { return _mm512_reduce_add_ps(v); }
inline float highest(Vec v) { return _mm512_reduce_max_ps(v); }
// `v` in the first `count` places, `other` behind.
inline Vec keep_first(Vec v, int64_t count, Vec other) {
  return _mm512_mask_mov_ps(other, (__mmask16)((1u << count) - 1), v);
}

template <int R, bool kPrefetch>
inline __attribute__((always_inline)) void accumulate(const Act* a, int64_t lda, const bf16* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], int64_t ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    const auto b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + kPanel);
    if constexpr (kPrefetch) {
      _mm_prefetch(b + ahead, _MM_HINT_T0);
      _mm_prefetch(b + ahead + kPanel, _MM_HINT_T0);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      int pair;
      std::memcpy(&pair, a + r * lda + k, sizeof pair);
      const auto value = (__m512bh)_mm512_set1_epi32(pair);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], value, b0);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], value, b1);
    }
  }
}

#else  // AVX2 and FMA

using Vec = __m256;
using Act = float;
constexpr int kWidth = 8, kMaxRows = 6;
template <int R>
constexpr int kVectors = R <= 2 ? 4 : 2;  // few rows need more sums beside each other to hide latency

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
// Rounds to nearest, ties to even; a NaN stays one.
inline void store(bf16* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i wide = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
inline Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec p, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline float sum(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float highest(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// `v` in the first `count` places, `other` behind.
inline Vec keep_first(Vec v, int64_t count, Vec other) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), places)));
}

// sum += a * b. As assembly, because compilers else choose forms that overwrite a or b, and then spill sums.
inline __attribute__((always_inline)) void add_product(Vec& sum, Vec a, Vec b) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

alignas(32) const uint32_t kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                             0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// Sums, weights and one value fill the sixteen registers, so a pair is loaded twice and not kept.
template <int R, bool kPrefetch>
inline __attribute__((always_inline)) void accumulate(const Act* a, int64_t lda, const bf16* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], int64_t ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    if constexpr (kPrefetch) _mm_prefetch(b + ahead, _MM_HINT_T0);
    if constexpr (kPrefetch && kVectors<R> == 4) _mm_prefetch(b + ahead + kPanel, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int second = 0; second < 2; second++) {  // the first of each pair, then the second
      Vec weights[kVectors<R>];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors<R>; c++) {
        const Vec pairs = load((const float*)(b + c * 2 * kWidth));
        weights[c] = second ? _mm256_and_ps(_mm256_load_ps((const float*)kHighHalves), pairs)
                            : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) {
        const Vec value = _mm256_broadcast_ss(a + r * lda + k + second);
#pragma GCC unroll 4
        for (int c = 0; c < kVectors<R>; c++) add_product(acc[r][c], value, weights[c]);
      }
      asm volatile("" ::: "memory");
    }
  }
}

#endif

template <int R>
constexpr int64_t kColumns = kVectors<R> * kWidth;  // of one pass over a panel

// sums[R][kColumns] = (kAdd: sums +) a[R][0..num_k) times kColumns columns of a panel; meanwhile, with kPrefetch, brings
// in what lies `ahead` elements further on. A function of its own, for the sake of the registers.
template <int R, bool kAdd, bool kPrefetch>
__attribute__((noinline)) void tile(const Act* a, int64_t lda, const bf16* b, int64_t num_k, float* sums,
                                    int64_t ahead) {
  Vec acc[R][kVectors<R>];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors<R>; c++) acc[r][c] = kAdd ? load(sums + r * kColumns<R> + c * kWidth) : zero();
  accumulate<R, kPrefetch>(a, lda, b, num_k, acc, ahead);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors<R>; c++) store(sums + r * kColumns<R> + c * kWidth, acc[r][c]);
}

// exp, about 1e-7 relative (polynomial of Cephes' expf). Beyond ±87 counts as ±87; a NaN stays one.
inline Vec exp(Vec x) {
  x = min(splat(87.f), max(splat(-87.f), x));
  const Vec n = round(mul(x, splat(1.44269504f)));
  const Vec r = fnma(n, splat(-2.12194440e-4f), fnma(n, splat(0.693359375f), x));
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, mul(r, r), add(r, splat(1.f)));
  return times_power_of_two(p, n);
}

inline Vec silu(Vec g) { return div(g, add(splat(1.f), exp(sub(zero(), g)))); }

// Calls f(integral_constant<rows>) for 1 to kMaxRows rows.
template <int R = kMaxRows, class F>
inline void with_rows(int64_t rows, F&& f) {
  if constexpr (R == 1) {
    f(std::integral_constant<int, 1>{});
  } else {
    if (rows == R) return f(std::integral_constant<int, R>{});
    with_rows<R - 1>(rows, std::forward<F>(f));
  }
}

// Shares items among the threads of the enclosing parallel region; returns when all are done.
template <class F>
inline void share(int64_t num_items, F f) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t i = 0; i < num_items; i++) f(i);
}

// A product x Wᵀ + bias, and where it goes. Rows of x and y are contiguous.
struct Product {
  const Act* x;
  const bf16* w;
  const float* bias;  // one a column, or none
  void* y;
  int64_t num_rows, num_k, num_outputs;
};

// epilogue(row, column, two vectors) for each two vectors of columns of each row.
//
// An item is some panels for up to 96 rows, whose activations stay in the cache while panel after panel passes. A step of
// few rows is bound by reading the weights, so the next panel is brought in during the first pass over the rows.
template <class Epilogue>
void multiply(const Product& p, int64_t num_columns, Epilogue epilogue) {
  constexpr int64_t row_block = 96, max_panels_an_item = 24;
  const int64_t num_panels = (num_columns + kPanel - 1) / kPanel, num_blocks = (p.num_rows + row_block - 1) / row_block;
  const int64_t parts = (num_blocks == 1 ? 2 : 1) * omp_get_num_threads();
  const int64_t panels_an_item = std::clamp<int64_t>(num_panels / parts, 1, max_panels_an_item);
  const int64_t items_a_block = (num_panels + panels_an_item - 1) / panels_an_item;
  share(num_blocks * items_a_block, [&](int64_t item) {
    const int64_t row0 = item / items_a_block * row_block, row1 = std::min(p.num_rows, row0 + row_block);
    const int64_t panel0 = item % items_a_block * panels_an_item;
    const int64_t panel1 = std::min(num_panels, panel0 + panels_an_item);
    // Strips of about equal height: 32 rows at 12 are 11, 11 and 10.
    const int64_t strips = (row1 - row0 + kMaxRows - 1) / kMaxRows, strip = (row1 - row0 + strips - 1) / strips;
    for (int64_t panel = panel0; panel < panel1; panel++)
      for (int64_t row = row0; row < row1; row += strip)
        with_rows(std::min(strip, row1 - row), [&](auto rows) {
          constexpr int R = rows();
          for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
            alignas(64) float sums[R * kColumns<R>];
            const Act* a = p.x + row * p.num_k;
            const bf16* b = p.w + panel * kPanel * p.num_k + 2 * column;
            if (num_blocks == 1 && row == row0)
              tile<R, false, true>(a, p.num_k, b, p.num_k, sums, strips == 1 ? 1024 : kPanel * p.num_k);
            else
              tile<R, false, false>(a, p.num_k, b, p.num_k, sums, 0);
            for (int r = 0; r < R; r++)
              for (int64_t c = 0; c < kColumns<R>; c += 2 * kWidth) {
                const int64_t output = panel * kPanel + column + c;
                const float* sum = sums + r * kColumns<R> + c;
                Vec first = load(sum), second = load(sum + kWidth);
                if (p.bias) first = add(first, load(p.bias + output)), second = add(second, load(p.bias + output + kWidth));
                epilogue(row + r, output, first, second);
              }
          }
        });
  });
}

// Two vectors into y[0..2 * kWidth), or what of it is before `end`: a matrix may end within a panel.
template <class T>
inline void store_two(T* y, Vec first, Vec second, const T* end) {
  if (y + 2 * kWidth <= end) {
    store(y, first);
    store(y + kWidth, second);
  } else if (y < end) {
    T values[2 * kWidth];
    store(values, first);
    store(values + kWidth, second);
    std::copy(values, values + (end - y), y);
  }
}

template <class T>
void linear(const Product& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    T* y = (T*)p.y + row * p.num_outputs;
    store_two(y + output, first, second, y + p.num_outputs);
  });
}

void linear_add(const Product& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    float* y = (float*)p.y + row * p.num_outputs + output;
    store(y, add(load(y), first));
    store(y + kWidth, add(load(y + kWidth), second));
  });
}

// Gate and up columns lie in turns of kWidth.
void linear_silu(const Product& p) {
  multiply(p, 2 * p.num_outputs, [&p](int64_t row, int64_t column, Vec gate, Vec up) {
    store((Act*)p.y + row * p.num_outputs + column / 2, mul(silu(gate), up));
  });
}

// y = x / sqrt(mean(x²) + eps) * w; y may be x.
template <class In, class Out>
inline void norm_row(const In* x, const float* w, Out* y, int64_t size, float eps) {
  Vec squares = zero();
  for (int64_t j = 0; j < size; j += kWidth) squares = fma(load(x + j), load(x + j), squares);
  const Vec scale = splat(1.f / std::sqrt(sum(squares) / (float)size + eps));
  for (int64_t j = 0; j < size; j += kWidth) store(y + j, mul(mul(load(x + j), scale), load(w + j)));
}

void rmsnorm(const float* x, const float* w, Act* y, int64_t num_rows, int64_t size, float eps) {
  share((num_rows + 15) / 16, [=](int64_t i) {
    for (int64_t t = i * 16; t < std::min(num_rows, i * 16 + 16); t++) norm_row(x + t * size, w, y + t * size, size, eps);
  });
}

struct Step {
  const int64_t *positions, *slots, *row_starts, *kv_lens, *block_table;
  int64_t num_tokens, num_rows, block_table_stride;
};

struct Shape {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t block_stride;     // values of a block, all layers
  const float* rope_table;  // [positions][head_dim]: cosines, then sines
  bf16* pool;
};

struct HeadNorms {
  const float *query, *key;  // [head_dim] each, or none
  float eps;
};

void rotate(Act* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; j += kWidth) {
    const Vec a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
    store(x + j, sub(mul(a, c), mul(b, s)));
    store(x + half + j, add(mul(b, c), mul(a, s)));
  }
}

// Norms and rotates the queries and keys of each token in place; writes its keys and values to its block.
void rope_and_write(Act* qkv, const Step& step, const Shape& shape, int64_t layer, const HeadNorms& norms) {
  const int64_t dim = shape.head_dim, half = dim / 2, num_kv = shape.num_kv_heads, head_size = kPanel * dim;
  const int64_t num_rotated = shape.num_heads + num_kv, width = (num_rotated + num_kv) * dim;
  share((step.num_tokens + 63) / 64, [=](int64_t i) {  // fewer tokens an item would share cache lines of a block
    for (int64_t t = i * 64; t < std::min(step.num_tokens, i * 64 + 64); t++) {
      Act* token = qkv + t * width;
      const float* cos = shape.rope_table + step.positions[t] * dim;
      for (int64_t h = 0; h < num_rotated; h++) {
        Act* x = token + h * dim;
        const float* norm = h < shape.num_heads ? norms.query : norms.key;
        if (norm) norm_row(x, norm, x, dim, norms.eps);
        rotate(x, cos, cos + half, half);
      }
      const int64_t slot = step.slots[t], place = slot % kPanel;
      // What lies behind a row's last token is an earlier owner's, and may be no number: its pair must not meet that.
      const bool ends_pair = place % 2 == 0 && (t + 1 == step.num_tokens || step.slots[t + 1] != slot + 1);
      bf16* block = shape.pool + slot / kPanel * shape.block_stride + layer * 2 * num_kv * head_size;
      for (int64_t h = 0; h < num_kv; h++) {
        alignas(64) bf16 key[kMaxHeadDim], value[kMaxHeadDim];
        for (int64_t j = 0; j < dim; j += kWidth) {
          store(key + j, load(token + (shape.num_heads + h) * dim + j));
          store(value + j, load(token + (num_rotated + h) * dim + j));
        }
        bf16* keys = block + h * head_size + 2 * place;
        bf16* values = block + (num_kv + h) * head_size + place / 2 * 2 * kPanel + place % 2;
        for (int64_t j = 0; j < half; j++) std::memcpy(keys + j * 2 * kPanel, key + 2 * j, 2 * sizeof(bf16));
        for (int64_t j = 0; j < dim; j++) {
          bf16* v = values + j / kPanel * kPanel * kPanel + j % kPanel * 2;
          *v = value[j];
          if (ends_pair) v[1] = 0;
        }
      }
    }
  });
}

constexpr int64_t kGroup = 512;  // positions that meet a query at a time; cut at multiples of it, whatever the step

// What one KV head of one row attends with.
struct Context {
  const int64_t* blocks;
  const bf16 *keys, *values;  // of block 0
  int64_t block_stride, dim, heads_a_kv;
  float scale;
};

// Attention of R queries, `heads_a_kv` a token, the first token at `position`: softmax online over groups of positions
// (Milakov & Gimelshein 2018). A query's result depends on its own position and no other.
//
// Args: queries [R][dim]; sums [R] and out [R][dim] come out, out still to be divided by sums.
template <int R>
void attend(const Act* queries, int64_t position, const Context& c, float* sums, float* out) {
  alignas(64) static thread_local float scores[kMaxRows * kGroup];
  alignas(64) static thread_local Act weights[kMaxRows * kGroup];
  constexpr bool kReads = R <= 4;  // few queries are bound by reading the cache
  const int64_t end = position + (R - 1) / c.heads_a_kv + 1;
  float highs[R], corrections[R];
  for (int r = 0; r < R; r++) highs[r] = -INFINITY, sums[r] = 0;
  for (int64_t group = 0; group < end; group += kGroup) {
    const int64_t group_len = std::min(end - group, kGroup), num_blocks = (group_len + kPanel - 1) / kPanel;
    const int64_t* table = c.blocks + group / kPanel;
    const auto ahead = [&](int64_t b) { return b + 1 < num_blocks ? (table[b + 1] - table[b]) * c.block_stride : 0; };
    alignas(64) float products[R * kColumns<R>];
    for (int64_t b = 0; b < num_blocks; b++)
      for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
        tile<R, false, kReads>(queries, c.dim, c.keys + table[b] * c.block_stride + 2 * column, c.dim, products, ahead(b));
        for (int r = 0; r < R; r++)
          std::copy_n(products + r * kColumns<R>, kColumns<R>, scores + r * kGroup + b * kPanel + column);
      }
    for (int r = 0; r < R; r++) {
      const int64_t seen = std::clamp<int64_t>(position + r / c.heads_a_kv + 1 - group, 0, group_len);
      const int64_t whole = seen / kWidth * kWidth;
      const float* s = scores + r * kGroup;
      Act* w = weights + r * kGroup;
      Vec high = splat(-INFINITY);
      for (int64_t j = 0; j < whole; j += kWidth) high = max(high, load(s + j));
      if (whole < seen) high = max(high, keep_first(load(s + whole), seen - whole, splat(-INFINITY)));
      const float new_high = std::max(highs[r], highest(high) * c.scale);
      corrections[r] = highs[r] == new_high ? 1.f : std::exp(highs[r] - new_high);
      highs[r] = new_high;
      Vec total = zero();
      for (int64_t j = 0; j < num_blocks * kPanel; j += kWidth) {
        Vec e = zero();
        if (j < seen) e = keep_first(exp(fma(load(s + j), splat(c.scale), splat(-new_high))), std::min<int64_t>(seen - j, kWidth), zero());
        total = add(total, e);
        store(w + j, e);
      }
      sums[r] = sums[r] * corrections[r] + sum(total);
    }
    for (int64_t d = 0; d < c.dim; d += kPanel)
      for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
        for (int r = 0; r < R; r++)
          for (int64_t j = 0; j < kColumns<R>; j += kWidth) {
            const Vec before = group == 0 ? zero() : mul(load(out + r * c.dim + d + column + j), splat(corrections[r]));
            store(products + r * kColumns<R> + j, before);
          }
        for (int64_t b = 0; b < num_blocks; b++) {
          const int64_t num_tokens = std::min(kPanel, (group_len - b * kPanel + 1) / 2 * 2);
          const bf16* panel = c.values + table[b] * c.block_stride + d * kPanel + 2 * column;
          tile<R, true, kReads>(weights + b * kPanel, kGroup, panel, num_tokens, products, ahead(b));
        }
        for (int r = 0; r < R; r++)
          std::copy_n(products + r * kColumns<R>, kColumns<R>, out + r * c.dim + d + column);
      }
  }
}

// Some tokens of a row, for one KV head.
struct AttentionItem {
  int64_t row, head, token;
};

int64_t tokens_a_tile(const Shape& shape) { return kMaxRows * shape.num_kv_heads / shape.num_heads; }

std::vector<AttentionItem> cut_attention(const Step& step, const Shape& shape) {
  const int64_t tokens_an_item = 16 * tokens_a_tile(shape);
  std::vector<AttentionItem> items;
  for (int64_t row = 0; row < step.num_rows; row++) {
    const int64_t num_tokens = step.row_starts[row + 1] - step.row_starts[row];
    for (int64_t t = (num_tokens - 1) / tokens_an_item * tokens_an_item; t >= 0; t -= tokens_an_item)  // long ones first
      for (int64_t head = 0; head < shape.num_kv_heads; head++) items.push_back({row, head, t});
  }
  return items;
}

void attention(const Act* qkv, const Step& step, const Shape& shape, int64_t layer,
               const std::vector<AttentionItem>& items, Act* out) {
  const int64_t dim = shape.head_dim, heads_a_kv = shape.num_heads / shape.num_kv_heads, head_size = kPanel * dim;
  const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * dim, tile_len = tokens_a_tile(shape);
  share((int64_t)items.size(), [&](int64_t i) {
    alignas(64) Act queries[kMaxRows * kMaxHeadDim];
    alignas(64) float result[kMaxRows * kMaxHeadDim];
    float sums[kMaxRows];
    const auto [row, head, token0] = items[i];
    const int64_t first = step.row_starts[row], num_tokens = step.row_starts[row + 1] - first;
    const bf16* keys = shape.pool + (layer * 2 * shape.num_kv_heads + head) * head_size;
    const Context context{step.block_table + row * step.block_table_stride, keys, keys + shape.num_kv_heads * head_size,
                          shape.block_stride, dim, heads_a_kv, 1.f / std::sqrt((float)dim)};
    for (int64_t t = token0; t < std::min(num_tokens, token0 + 16 * tile_len); t += tile_len) {
      const int64_t len = std::min(tile_len, num_tokens - t), position = step.kv_lens[row] - num_tokens + t;
      for (int64_t j = 0; j < len; j++)
        std::copy_n(qkv + (first + t + j) * width + head * heads_a_kv * dim, heads_a_kv * dim, queries + j * heads_a_kv * dim);
      with_rows(len * heads_a_kv, [&](auto rows) { attend<rows()>(queries, position, context, sums, result); });
      for (int64_t r = 0; r < len * heads_a_kv; r++) {
        Act* o = out + (first + t + r / heads_a_kv) * shape.num_heads * dim + (head * heads_a_kv + r % heads_a_kv) * dim;
        for (int64_t d = 0; d < dim; d += kWidth) store(o + d, mul(load(result + r * dim + d), splat(1.f / sums[r])));
      }
    }
  });
}

enum Kind : int64_t { kNorm, kLinear, kLinearFloat, kLinearAdd, kLinearSilu, kRopeAndWrite, kAttention };

// One op on static memory. num_rows 0: the step's tokens.
struct Op {
  int64_t kind;
  const void *x, *w, *extra;  // extra: a bias, or the norm of keys
  void* y;
  int64_t num_rows, num_k, num_outputs, layer;
  double eps;
};

void run(const Op& op, const Step& step, const Shape& shape, const std::vector<AttentionItem>& items) {
  const int64_t num_rows = op.num_rows ? op.num_rows : step.num_tokens;
  const auto *x = (const Act*)op.x;
  const auto *w = (const float*)op.w, *extra = (const float*)op.extra;
  auto *y = (Act*)op.y;
  const Product product{x, (const bf16*)op.w, extra, op.y, num_rows, op.num_k, op.num_outputs};
  switch (op.kind) {
    case kNorm: return rmsnorm((const float*)op.x, w, y, num_rows, op.num_outputs, (float)op.eps);
    case kLinear: return linear<Act>(product);
    case kLinearFloat: return linear<float>(product);
    case kLinearAdd: return linear_add(product);
    case kLinearSilu: return linear_silu(product);
    case kRopeAndWrite: return rope_and_write(y, step, shape, op.layer, {w, extra, (float)op.eps});
    case kAttention: return attention(x, step, shape, op.layer, items, y);
  }
}

}  // namespace

extern "C" {

int64_t baton_vector_width() { return kWidth; }
int64_t baton_max_rows() { return kMaxRows; }
int64_t baton_max_head_dim() { return kMaxHeadDim; }

// Runs ops one after another, all threads on each.
void baton_run(const Op* ops, int64_t num_ops, const Step* step, const Shape* shape, int64_t num_threads) {
  const bool attends = std::any_of(ops, ops + num_ops, [](const Op& op) { return op.kind == kAttention; });
  const auto items = attends ? cut_attention(*step, *shape) : std::vector<AttentionItem>{};
#pragma omp parallel num_threads(num_threads)
  for (int64_t i = 0; i < num_ops; i++) run(ops[i], *step, *shape, items);
}
}
