/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam.hpp on plain host memory: who owns a block, what is thrown, what containers get.  Built in each standard of C++
 * and run by check_cpp.sh.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mam.hpp"

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      std::printf("line %d: not so: %s (%s)\n", __LINE__, #condition, MAM_LastError());                                \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

mam::unique_pool pool_of(std::size_t chunk_bytes, std::size_t alignment = 0) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = chunk_bytes;
  options.alignment = alignment;
  return mam::make_pool(options);
}

MAM_PoolInfo info_of(MAM_Pool pool) {
  MAM_PoolInfo info = {};
  info.struct_size = sizeof info;
  EXPECT(MAM_PoolGetInfo(pool, &info) == cudaSuccess);
  return info;
}
std::size_t live_in(const mam::unique_pool &pool) { return info_of(pool.get()).used_count; }

bool is_multiple(const void *block, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(block) % alignment == 0;
}

/* ---- Owning pointers --------------------------------------------------------------------------------------------- */

void block_lives_as_long_as_its_owner() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  {
    auto numbers = mam::make_unique<float[]>(1000, mam::in(pool));
    EXPECT(live_in(pool) == 1 && info_of(pool.get()).requested_bytes == 4000);
    auto other = std::move(numbers);
    EXPECT(numbers == nullptr && live_in(pool) == 1);
    other[999] = 1; /* plain host memory */
    auto constant = mam::make_unique<const std::uint64_t>(mam::in(pool));
    EXPECT(live_in(pool) == 2 && info_of(pool.get()).requested_bytes == 4008);
    other.reset();
    EXPECT(live_in(pool) == 1);
  }
  EXPECT(live_in(pool) == 0 && info_of(pool.get()).free_call_count == 2);
}

void default_pool_is_the_one_without_a_pool() {
  auto numbers = mam::make_unique<int[]>(10);
  EXPECT(info_of(nullptr).used_count == 1);
  EXPECT(mam::make_unique<int[]>(0) == nullptr);
  EXPECT(numbers.get_deleter().where() == mam::place());
}

/* What was freed on a stream serves the next allocation on it. */
void stream_s_block_is_freed_on_it() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  cudaStream_t stream = nullptr;
  mam::place place = mam::in(pool).on(stream);
  EXPECT(place.ordered() && place.pool() == pool.get() && place != mam::in(pool));
  const void *first = mam::make_unique<char[]>(100000, place).get();
  auto second = mam::make_unique<char[]>(100000, place);
  EXPECT(second.get() == first && info_of(pool.get()).stream_hit_count == 1);

  auto plain = mam::make_unique<char[]>(200000, mam::in(pool));
  first = plain.get();
  plain.get_deleter().free_on(stream);
  plain.reset();
  EXPECT(mam::make_unique<char[]>(200000, place).get() == first && info_of(pool.get()).stream_hit_count == 2);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

template <class Failure, class Action> std::string thrown_by(Action action) {
  try {
    action();
  } catch (const Failure &failure) {
    return failure.what();
  }
  return "";
}

void missing_memory_is_a_bad_alloc() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  auto too_much = [&pool] { (void)mam::make_unique<char[]>(2 * kChunkBytes, mam::in(pool)); };
  std::string text = thrown_by<mam::bad_alloc>(too_much);
  EXPECT(!text.empty() && text == MAM_LastError());
  EXPECT(!thrown_by<std::bad_alloc>(too_much).empty());
  EXPECT(live_in(pool) == 0);
  mam::bad_alloc long_text(std::string(1000, 'x').c_str());
  EXPECT(std::strlen(long_text.what()) == 255);
}

void count_that_no_memory_has_is_refused_before_the_pool_is_asked() {
  std::size_t count = ~std::size_t{0} / sizeof(double) + 2; /* times the size it would be small */
  EXPECT(!thrown_by<std::bad_array_new_length>([count] { (void)mam::make_unique<double[]>(count); }).empty());
  EXPECT(!thrown_by<std::bad_array_new_length>([count] { (void)mam::allocator<double>().allocate(count); }).empty());
}

void other_failures_are_errors() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  MAM_Pool gone = pool.get();
  pool.reset();
  try {
    (void)mam::make_unique<int>(mam::in(gone));
    EXPECT(false);
  } catch (const mam::error &failure) {
    EXPECT(failure.code() == cudaErrorInvalidResourceHandle && std::strcmp(failure.what(), MAM_LastError()) == 0);
  }
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.alignment = 3;
  EXPECT(!thrown_by<mam::error>([&options] { (void)mam::make_pool(options); }).empty());
}

struct alignas(1024) Wide {
  char bytes[1024];
};

void alignment_is_the_pool_s_or_refused() {
  mam::unique_pool plain = pool_of(kChunkBytes), wide = pool_of(kChunkBytes, 4096);
  EXPECT(!thrown_by<mam::bad_alloc>([&plain] { (void)mam::make_unique<Wide>(mam::in(plain)); }).empty());
  EXPECT(live_in(plain) == 0);
  for (int i = 0; i < 10; i++) {
    auto block = mam::make_unique<Wide>(mam::in(wide, 4096));
    EXPECT(is_multiple(block.release(), 1024));
  }
}

/* ---- Allocators -------------------------------------------------------------------------------------------------- */

void containers_take_their_elements_from_the_pool() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  {
    mam::allocator<int> from(mam::in(pool));
    std::vector<int, mam::allocator<int>> numbers(from);
    for (int i = 0; i < 1000; i++)
      numbers.push_back(i);
    EXPECT(numbers[999] == 999 && live_in(pool) == 1);
    std::list<int, mam::allocator<int>> nodes(10, 7, from);
    std::map<int, int, std::less<int>, mam::allocator<std::pair<const int, int>>> pairs(from);
    pairs[1] = 2;
    auto shared = std::allocate_shared<double>(from, 0.5);
    EXPECT(live_in(pool) == 13 && *shared > 0.4);
    std::vector<int, mam::allocator<int>> copy(numbers), elsewhere;
    EXPECT(copy.get_allocator() == from && elsewhere.get_allocator() != from);
    elsewhere = std::move(numbers);
    EXPECT(elsewhere.get_allocator() == from && elsewhere[10] == 10);
  }
  EXPECT(live_in(pool) == 0);
}

/* As Thrust's pointer is: no plain one, and with more parameters than the element. */
template <class T, class Tag = int> class fancy {
public:
  fancy() = default;
  explicit fancy(T *raw) : raw_(raw) {}
  T *get() const { return raw_; }

private:
  T *raw_ = nullptr;
};

void allocator_hands_out_pointers_of_another_kind() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  using numbers = mam::allocator<int, fancy<int, char>>;
  using letters = numbers::rebind<char>::other;
  static_assert(std::is_same<letters::pointer, fancy<char, char>>::value, "the same kind, of another element");
  static_assert(std::is_same<mam::allocator<int>::rebind<char>::other::pointer, char *>::value, "a plain one");
  numbers from(mam::in(pool));
  fancy<int, char> block = from.allocate(10);
  EXPECT(live_in(pool) == 1 && info_of(pool.get()).requested_bytes == 40);
  letters(from).deallocate(fancy<char, char>(reinterpret_cast<char *>(block.get())), 40);
  EXPECT(live_in(pool) == 0);
}

void empty_pointer_is_no_pool() {
  mam::unique_pool none;
  EXPECT(!thrown_by<mam::error>([&none] { (void)mam::in(none); }).empty());
  EXPECT(mam::in(MAM_Pool{}) == mam::place());
}

void cub_s_allocator_gives_errors() {
  mam::unique_pool pool = pool_of(kChunkBytes);
  mam::cub_allocator from(pool.get());
  void *block = nullptr;
  EXPECT(from.DeviceAllocate(&block, 2 * kChunkBytes) == cudaErrorMemoryAllocation && block == nullptr);
  EXPECT(from.DeviceAllocate(&block, 1000) == cudaSuccess && live_in(pool) == 1);
  EXPECT(from.DeviceFree(block) == cudaSuccess && live_in(pool) == 0);
  EXPECT(from.DeviceFree(block) == cudaErrorInvalidValue);
}

/* ---- A memory resource ------------------------------------------------------------------------------------------- */

#if defined(MAM_HAVE_PMR)
void resource_of_the_standard_serves_containers() {
  static_assert(!std::is_move_constructible<mam::host_resource>::value &&
                    !std::is_move_assignable<mam::host_resource>::value,
                "containers keep the address of a resource");
  mam::host_resource memory, other;
  {
    std::pmr::vector<std::pmr::string> words(&memory);
    words.emplace_back(1000, 'x');
    std::pmr::monotonic_buffer_resource upon(&memory);
    std::pmr::vector<int> numbers(100, 1, &upon);
    EXPECT(info_of(memory.pool()).used_count == 3);
    for (std::size_t alignment = 1; alignment <= kChunkBytes; alignment *= 2) {
      void *block = memory.allocate(alignment, alignment), *empty = memory.allocate(0, alignment);
      EXPECT(is_multiple(block, alignment) && is_multiple(empty, alignment) && block != empty);
      std::memset(block, 1, alignment);
      memory.deallocate(block, alignment, alignment);
      memory.deallocate(empty, 0, alignment);
    }
  }
  EXPECT(info_of(memory.pool()).used_count == 0);
  void *nothing = memory.allocate(0);
  EXPECT(nothing != nullptr);
  memory.deallocate(nothing, 0);
  EXPECT(memory.is_equal(memory) && !memory.is_equal(other));
  volatile std::size_t most = SIZE_MAX; /* a compiler warns of what it knows to be too large */
  EXPECT(!thrown_by<mam::bad_alloc>([&memory, &most] { (void)memory.allocate(most, 1024); }).empty());
}

/* A pool of the standard asks for blocks that are aligned as they are large. */
template <class Pool> void resource_stands_behind_a_pool_of_the_standard() {
  for (std::size_t alignment = 16; alignment <= 4096; alignment *= 16) {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.source = MAM_SOURCE_HOST;
    options.alignment = alignment;
    mam::host_resource memory(options);
    {
      Pool pool(&memory);
      std::pmr::vector<int> numbers(&pool);
      for (int i = 0; i < 100000; i++)
        numbers.push_back(i);
      EXPECT(numbers[99999] == 99999);
    }
    EXPECT(info_of(memory.pool()).used_count == 0);
  }
}

void resource_refuses_memory_that_the_host_cannot_touch() {
  for (MAM_Source source : {MAM_SOURCE_DEVICE, MAM_SOURCE_VMM}) {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.source = source;
    EXPECT(!thrown_by<mam::error>([&options] { mam::host_resource memory(options); }).empty());
  }
}
#endif

} // namespace

int main() {
  block_lives_as_long_as_its_owner();
  default_pool_is_the_one_without_a_pool();
  stream_s_block_is_freed_on_it();
  missing_memory_is_a_bad_alloc();
  count_that_no_memory_has_is_refused_before_the_pool_is_asked();
  other_failures_are_errors();
  alignment_is_the_pool_s_or_refused();
  containers_take_their_elements_from_the_pool();
  allocator_hands_out_pointers_of_another_kind();
  empty_pointer_is_no_pool();
  cub_s_allocator_gives_errors();
#if defined(MAM_HAVE_PMR)
  resource_of_the_standard_serves_containers();
  resource_stands_behind_a_pool_of_the_standard<std::pmr::unsynchronized_pool_resource>();
  resource_stands_behind_a_pool_of_the_standard<std::pmr::synchronized_pool_resource>();
  resource_refuses_memory_that_the_host_cannot_touch();
#endif
  return 0;
}
