/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Containers of the standard in a pool whose memory the host can touch.
 *
 * prints: 1000 numbers, the last is 999
 * prints: 3 words
 */
#include <cstdio>
#include <exception>
#include <mam.hpp>
#include <string>
#include <vector>

int main() {
  try {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.source = MAM_SOURCE_HOST; /* with a GPU: MAM_SOURCE_PINNED, so that kernels can use it too */
    mam::host_resource memory(options);

    std::vector<int, mam::allocator<int>> numbers(mam::in(memory.pool()));
    for (int i = 0; i < 1000; i++)
      numbers.push_back(i);
    std::printf("%zu numbers, the last is %d\n", numbers.size(), numbers.back());

    std::pmr::vector<std::pmr::string> words({"a", "few", "words"}, &memory);
    std::printf("%zu words\n", words.size());
  } catch (const std::exception &failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
