/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/balance.h"

#include "base/clock.h"

int64_t balance_note(struct balance_sum *sum, int64_t bytes) {
  int64_t most = atomic_load_explicit(&sum->most, memory_order_relaxed);
  while (bytes > most)
    if (atomic_compare_exchange_weak_explicit(&sum->most, &most, bytes, memory_order_relaxed, memory_order_relaxed))
      most = bytes;
  return most;
}

void balance_publish(struct balance *balance, struct balance_sum *sum) {
  int64_t moved = balance->bytes - balance->published;
  int64_t before = atomic_fetch_add_explicit(&sum->bytes, moved, memory_order_relaxed);
  (void)balance_note(sum, before + balance->most - balance->published);
  balance->published = balance->most = balance->bytes;
}

void balance_share(struct balance *balance, struct balance_sum *sum) {
  balance_publish(balance, sum);
  int64_t share = atomic_load_explicit(&sum->most, memory_order_relaxed) >> BALANCE_SLACK_BITS, now = now_ns();
  int64_t least = share > BALANCE_SLACK_LEAST ? share : BALANCE_SLACK_LEAST;
  bool quick = now - balance->published_ns < BALANCE_QUICK_NS;
  balance->slack = quick && 2 * balance->slack > least ? 2 * balance->slack : least;
  balance->published_ns = now;
  balance->high = balance->bytes + balance->slack;
  balance->low = balance->bytes - balance->slack;
}
