// The threads of a step, and how they share the work of an op.
#pragma once

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// Each thread begins with a part of an op's items of its own, in order, so that what it reads is one stream; a thread
// that is done takes items from the parts of others. An op is done when its items are: a thread that the system keeps
// from running is waited for only if it has begun an item, and finds the others ahead when it is back.
class Team {
 public:
  explicit Team(int64_t most_threads) : parts_(most_threads) {}

  // Of the enclosing parallel region.
  static int64_t num_threads() { return omp_get_num_threads(); }

  // Calls f(item) for 0 to num_items, each by one thread; returns when all are done. All threads of the region make the
  // same calls in the same order.
  template <class F>
  void share(int64_t num_items, F f) {
    const int64_t num_parts = num_threads(), me = omp_get_thread_num();
    const int64_t call = ++parts_[me].calls, num_until_now = parts_[me].items += num_items;
    int64_t num_mine = 0;
    for (int64_t i = 0; i < num_parts; i++) {
      const int64_t part = (me + i) % num_parts, begin = part * num_items / num_parts;
      const int64_t size = (part + 1) * num_items / num_parts - begin;
      for (int64_t item; (item = parts_[part].take(call, size)) >= 0; num_mine++) f(begin + item);
    }
    if (num_mine > 0) num_done_.fetch_add(num_mine, std::memory_order_release);
    wait_until_done(num_until_now);
  }

 private:
  struct alignas(64) Part {
    std::atomic<int64_t> taken = 0;     // number of the last call that took items << 32 | items that it took
    int64_t calls = 0, items = 0;       // that its thread has seen, this call's included; nobody else's business

    // An item's number within the part, or -1 if none is left.
    int64_t take(int64_t call, int64_t size) {
      int64_t before = taken.load(std::memory_order_relaxed);
      for (;;) {
        const int64_t last_call = before >> 32, item = last_call == call ? before & 0xffffffff : 0;
        if (last_call > call || item >= size) return -1;
        if (taken.compare_exchange_weak(before, (call << 32) + item + 1, std::memory_order_relaxed)) return item;
      }
    }
  };

  // Long waits give the core away: whoever is waited for may need it, where there are more threads than cores.
  void wait_until_done(int64_t num_items) const {
    constexpr auto spin = std::chrono::microseconds(200), nap = std::chrono::microseconds(20);
    const auto is_done = [&] { return num_done_.load(std::memory_order_acquire) >= num_items; };
    if (is_done()) return;
    const auto started = std::chrono::steady_clock::now();
    while (!is_done()) {
      for (int i = 0; i < 32 && !is_done(); i++) _mm_pause();
      if (std::chrono::steady_clock::now() - started > spin) std::this_thread::sleep_for(nap);
    }
  }

  std::vector<Part> parts_;
  alignas(64) std::atomic<int64_t> num_done_ = 0;  // items of all calls
};

// Calls f(row), some neighbours an item: up to `most_an_item`, but fewer before a thread has none.
template <class F>
inline void share_rows(Team& team, int64_t num_rows, int64_t most_an_item, F f) {
  const int64_t num_threads = Team::num_threads();
  const int64_t size = std::clamp<int64_t>((num_rows + num_threads - 1) / num_threads, 1, most_an_item);
  team.share((num_rows + size - 1) / size, [&](int64_t i) {
    for (int64_t row = i * size; row < std::min(num_rows, (i + 1) * size); row++) f(row);
  });
}

}  // namespace
