/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Owning pointers in C++: a block is freed at the end of its scope, on the stream that it was allocated on.
 *
 * prints: 1000 floats at 0x[0-9a-f]*
 * prints: the stream's next block is the same one
 */
#include <cstdio>
#include <exception>
#include <mam.hpp>

static const void *use_scratch(cudaStream_t stream) {
  auto scratch = mam::make_unique<char[]>(1 << 20, mam::on(stream));
  /* kernels on the stream use the block here */
  return scratch.get();
}

int main() {
  cudaStream_t stream = nullptr; /* the default stream; any other will do */
  try {
    auto values = mam::make_unique<float[]>(1000);
    std::printf("1000 floats at %p\n", static_cast<void *>(values.get()));
    const void *first = use_scratch(stream);
    std::printf("the stream's next block is %s one\n", use_scratch(stream) == first ? "the same" : "another");
  } catch (const std::exception &failure) { /* mam::bad_alloc or mam::error */
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
