/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/atomics.h - what the device heap needs of a machine: types, qualifiers, atomic operations, and lanes that
 * act together.
 *
 * A GPU (nvcc, NVRTC) and host threads have the same names here, so all other headers are written once.  This is the
 * only one that asks which of the two it is compiled for.  It needs no other header.
 *
 * The name of an operation says its order and its type: mam__cas_acq_rel_u64.  An operation is atomic among all threads
 * of the device; on the host, of the process.
 *
 * A test may define, before it includes this:
 *
 *   MAM__ATOMICS_STEP()       called before each atomic operation on the host
 *   MAM__ATOMICS_SEEN(value)  told what the operation read
 *   MAM__ATOMICS_PAUSE()      called instead of a rest
 *   MAM__ATOMICS_TIME_NS()    the time
 *   MAM__ATOMICS_SALT()       what mam__salt returns
 *   MAM__ATOMICS_LANES        host threads are lanes, and the test defines which they are and CUDA's collectives
 */
#ifndef MAM_DETAIL_ATOMICS_H
#define MAM_DETAIL_ATOMICS_H

typedef unsigned char mam__u8;
typedef unsigned short mam__u16;
typedef unsigned int mam__u32;
typedef unsigned long long mam__u64;

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#define MAM__ON_DEVICE 1
#else
#define MAM__ON_DEVICE 0
#endif

/* MAM__INLINE: a function that becomes a part of its callers.  With -G it is called: there each variable of a function
 * has a register and a place on the stack of its own, and a kernel took 208 registers and 8,480 bytes of stack.
 * MAM__COLLECTIVE: a function that becomes a part of its callers with -G, too.  It votes, matches or reduces, and lanes
 * of two callers must not do that together.  (It is MAM__INLINE where only one function calls it, or a whole warp makes
 * it.)
 * MAM__OUTLINE: a function that does not, so that a kernel pays for its registers and its code in one place.  It is for
 * what a kernel seldom needs.
 * MAM__JOINED: a part of its callers, which save less on the stack without a call in between.  With -rdc=true it is out
 * of line, since there a caller that calls nothing else would take more than 64 registers.
 *
 * ptxas numbers the registers of a function that it knows to have no other callers above those of its callers, so a
 * kernel would pay for the whole depth of calls.  A function that others may call follows the calling convention: it
 * uses its callers' registers and saves on the stack what they keep there.  Outlined functions are of this kind:
 *
 *   with -rdc=true   They have external linkage.  Every call is visible, and the linker knows stack and registers.
 *                    Of functions with one name it takes the one with fewest registers.  So with -G they have internal
 *                    linkage: else other files of the program would get them, which are slow and need more stack.
 *   without it       MAM__OUT_OF_SIGHT hides from ptxas which function is called.
 *
 * MAM__NARROW: with -rdc=true, a function that is called has at most 32 registers, so a kernel has few.  The header
 * mam/replace.cuh needs that: a file without it takes malloc for CUDA's own, which changes no register from R32 on. */
#if defined(__CUDACC_RDC__) && defined(__local_maxnreg__)
#define MAM__NARROW __local_maxnreg__(32)
#else
#define MAM__NARROW
#endif
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#ifdef __CUDACC_DEBUG__
#define MAM__INLINE static __device__ __noinline__ MAM__NARROW
#else
#define MAM__INLINE static __device__ __forceinline__
#endif
#define MAM__COLLECTIVE static __device__ __forceinline__
#if defined(__CUDACC_RDC__) && !defined(__CUDACC_DEBUG__)
#define MAM__OUTLINE inline __device__ __noinline__ MAM__NARROW
#define MAM__JOINED MAM__OUTLINE
#else
#define MAM__OUTLINE static __device__ __noinline__ MAM__NARROW
#define MAM__JOINED MAM__INLINE
#endif
#else
#define MAM__INLINE static inline __attribute__((unused))
#define MAM__COLLECTIVE MAM__INLINE
#define MAM__OUTLINE static __attribute__((unused))
#define MAM__JOINED static inline __attribute__((unused))
#endif

/* ptxas assumes that a hidden call may reach any function of the same type.  If a function might then call itself,
 * ptxas does not know the stack that a kernel needs.  So functions whose types would be the same get a different first
 * parameter, MAM__TAG(1 to 6), which has no value.  MAM__OUT_OF_SIGHT supplies it. */
#if MAM__ON_DEVICE && !defined(__CUDACC_RDC__)
template <int Number> struct mam__tag;
template <> struct mam__tag<1> { char bytes[1]; };
template <> struct mam__tag<2> { char bytes[2]; };
template <> struct mam__tag<3> { char bytes[3]; };
template <> struct mam__tag<4> { char bytes[4]; };
template <> struct mam__tag<5> { short words[1]; };
template <> struct mam__tag<6> { short words[2]; };
template <int Number, typename Result, typename... Values> struct mam__tagged {
  Result (*function)(mam__tag<Number>, Values...);
  __device__ __forceinline__ Result operator()(Values... values) const {
    return function(mam__tag<Number>(), values...);
  }
};
template <typename Result, typename... Values>
MAM__INLINE auto mam__out_of_sight(Result (*function)(Values...)) -> Result (*)(Values...) {
  asm volatile("" : "+l"(function));
  return function;
}
template <int Number, typename Result, typename... Values>
MAM__INLINE mam__tagged<Number, Result, Values...> mam__out_of_sight(Result (*function)(mam__tag<Number>, Values...)) {
  asm volatile("" : "+l"(function));
  return {function};
}
#define MAM__TAG(number) mam__tag<number>,
#define MAM__OUT_OF_SIGHT(function) mam__out_of_sight(function)
#else
#define MAM__TAG(number)
#define MAM__OUT_OF_SIGHT(function) (function)
#endif

/* How a loop is compiled for a GPU: unrolled as a whole, or not at all. */
#if MAM__ON_DEVICE
#define MAM__UNROLL _Pragma("unroll")
#define MAM__LOOP _Pragma("unroll 1") /* where small code matters more than speed */
#else
#define MAM__UNROLL
#define MAM__LOOP
#endif

/* Makes the compiler compute again what it has computed from a variable, instead of keeping it in a register.  With -G
 * it keeps nothing. */
#if MAM__ON_DEVICE && !defined(__CUDACC_DEBUG__)
#define MAM__FORGET(variable) asm volatile("" : "+r"(variable))
#define MAM__FORGET_THREE(one, two, three) asm volatile("" : "+r"(one), "+r"(two), "+r"(three))
#define MAM__FORGET_ADDRESS(variable) asm volatile("" : "+l"(variable))
#else
#define MAM__FORGET(variable) ((void)(variable))
#define MAM__FORGET_THREE(one, two, three) ((void)(one), (void)(two), (void)(three))
#define MAM__FORGET_ADDRESS(variable) ((void)(variable))
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/* ---- A GPU ----
 *
 * Each operation is PTX, so that its order is what is written, on every toolkit, and its address is known to be global.
 */

MAM__INLINE mam__u64 mam__global(const void *address) { return (mam__u64)__cvta_generic_to_global(address); }

#define MAM__PTX_LOAD(name, order, type, suffix, constraint)                                                           \
  MAM__INLINE type name(const type *word) {                                                                            \
    type value;                                                                                                        \
    asm volatile("ld." order ".gpu.global." suffix " %0, [%1];"                                                        \
                 : "=" constraint(value)                                                                               \
                 : "l"(mam__global(word))                                                                              \
                 : "memory");                                                                                          \
    return value;                                                                                                      \
  }
#define MAM__PTX_STORE(name, order, type, suffix, constraint)                                                          \
  MAM__INLINE void name(type *word, type value) {                                                                      \
    asm volatile("st." order ".gpu.global." suffix " [%0], %1;" ::"l"(mam__global(word)), constraint(value)            \
                 : "memory");                                                                                          \
  }
#define MAM__PTX_FETCH(name, operation, order, type, suffix, constraint)                                               \
  MAM__INLINE type name(type *word, type value) {                                                                      \
    type old;                                                                                                          \
    asm volatile("atom." order ".gpu.global." operation "." suffix " %0, [%1], %2;"                                    \
                 : "=" constraint(old)                                                                                 \
                 : "l"(mam__global(word)), constraint(value)                                                           \
                 : "memory");                                                                                          \
    return old;                                                                                                        \
  }

MAM__PTX_LOAD(mam__load_relaxed_u16, "relaxed", mam__u16, "u16", "h")
MAM__PTX_LOAD(mam__load_relaxed_u32, "relaxed", mam__u32, "u32", "r")
MAM__PTX_LOAD(mam__load_acquire_u32, "acquire", mam__u32, "u32", "r")
MAM__PTX_LOAD(mam__load_relaxed_u64, "relaxed", mam__u64, "u64", "l")
MAM__PTX_LOAD(mam__load_acquire_u64, "acquire", mam__u64, "u64", "l")
MAM__PTX_STORE(mam__store_relaxed_u16, "relaxed", mam__u16, "u16", "h")
MAM__PTX_STORE(mam__store_relaxed_u32, "relaxed", mam__u32, "u32", "r")
MAM__PTX_STORE(mam__store_release_u32, "release", mam__u32, "u32", "r")
MAM__PTX_STORE(mam__store_relaxed_u64, "relaxed", mam__u64, "u64", "l")
MAM__PTX_STORE(mam__store_release_u64, "release", mam__u64, "u64", "l")
MAM__PTX_FETCH(mam__add_relaxed_u32, "add", "relaxed", mam__u32, "u32", "r")
MAM__PTX_FETCH(mam__exchange_acq_rel_u32, "exch", "acq_rel", mam__u32, "b32", "r")
MAM__PTX_FETCH(mam__add_relaxed_u64, "add", "relaxed", mam__u64, "u64", "l")
MAM__PTX_FETCH(mam__add_acquire_u64, "add", "acquire", mam__u64, "u64", "l")
MAM__PTX_FETCH(mam__exchange_release_u64, "exch", "release", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__exchange_acq_rel_u64, "exch", "acq_rel", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__exchange_after_barrier_u64, "exch", "relaxed", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__and_relaxed_u64, "and", "relaxed", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__and_release_u64, "and", "release", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__and_acquire_u64, "and", "acquire", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__and_after_barrier_u64, "and", "relaxed", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__and_acq_rel_u64, "and", "acq_rel", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__or_relaxed_u64, "or", "relaxed", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__or_acquire_u64, "or", "acquire", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__or_release_u64, "or", "release", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__or_acq_rel_u64, "or", "acq_rel", mam__u64, "b64", "l")
MAM__PTX_FETCH(mam__or_acq_rel_u32, "or", "acq_rel", mam__u32, "b32", "r")
MAM__PTX_FETCH(mam__add_acq_rel_u32, "add", "acq_rel", mam__u32, "u32", "r")

#define MAM__PTX_CAS(name, order, type, suffix, constraint)                                                            \
  MAM__INLINE type name(type *word, type expected, type desired) {                                                     \
    type old;                                                                                                          \
    asm volatile("atom." order ".gpu.global.cas." suffix " %0, [%1], %2, %3;"                                          \
                 : "=" constraint(old)                                                                                 \
                 : "l"(mam__global(word)), constraint(expected), constraint(desired)                                   \
                 : "memory");                                                                                          \
    return old;                                                                                                        \
  }
MAM__PTX_CAS(mam__cas_relaxed_u64, "relaxed", mam__u64, "b64", "l")
MAM__PTX_CAS(mam__cas_acq_rel_u32, "acq_rel", mam__u32, "b32", "r")
MAM__PTX_CAS(mam__cas_acquire_u64, "acquire", mam__u64, "b64", "l")
MAM__PTX_CAS(mam__cas_acq_rel_u64, "acq_rel", mam__u64, "b64", "l")

/* For several compare-and-swaps that are one step together: a barrier before and after them (mam__barrier) is cheaper
 * than an order for each.  A barrier after a relaxed read acquires what was released to the value read; a barrier
 * before a relaxed write releases it. (PTX ISA, memory consistency model, release and acquire patterns.) */
MAM__PTX_CAS(mam__cas_between_barriers_u64, "relaxed", mam__u64, "b64", "l")
MAM__INLINE void mam__barrier(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* A compare-and-swap, a load and an and of which some in a row may not be wanted.  There is no branch, so that all of
 * them are under way at once.  One that is not wanted returns as if it had succeeded, or `otherwise`. */
MAM__INLINE mam__u64 mam__cas_between_barriers_if_u64(int wanted, mam__u64 *word, mam__u64 expected, mam__u64 desired) {
  mam__u64 old;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %4, 0;\n\tmov.b64 %0, %2;\n\t"
               "@p atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;\n\t}"
               : "=&l"(old)
               : "l"(mam__global(word)), "l"(expected), "l"(desired), "r"(wanted)
               : "memory");
  return old;
}
MAM__INLINE mam__u64 mam__load_relaxed_if_u64(int wanted, const mam__u64 *word, mam__u64 otherwise) {
  mam__u64 value;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %3, 0;\n\tmov.b64 %0, %2;\n\t"
               "@p ld.relaxed.gpu.global.u64 %0, [%1];\n\t}"
               : "=&l"(value)
               : "l"(mam__global(word)), "l"(otherwise), "r"(wanted)
               : "memory");
  return value;
}

MAM__INLINE mam__u64 mam__or_relaxed_if_u64(int wanted, mam__u64 *word, mam__u64 value, mam__u64 otherwise) {
  mam__u64 old;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %4, 0;\n\tmov.b64 %0, %3;\n\t"
               "@p atom.relaxed.gpu.global.or.b64 %0, [%1], %2;\n\t}"
               : "=&l"(old)
               : "l"(mam__global(word)), "l"(value), "l"(otherwise), "r"(wanted)
               : "memory");
  return old;
}

/* Two threads each change a word and then look at the other's.  At least one of them sees the other's change, if one
 * has mam__barrier_all between the two, and the other looks by mam__look_after_change_u32. */
MAM__INLINE void mam__barrier_all(void) { asm volatile("fence.sc.gpu;" ::: "memory"); }
MAM__INLINE mam__u32 mam__look_after_change_u32(mam__u32 *word) {
  mam__barrier_all();
  return mam__load_relaxed_u32(word);
}
/* The look alone, for a caller that has passed mam__barrier_all; and the change alone, for a caller that will pass it.
 */
MAM__INLINE mam__u32 mam__look_after_barrier_u32(mam__u32 *word) { return mam__load_relaxed_u32(word); }
MAM__INLINE mam__u64 mam__or_before_barrier_u64(mam__u64 *word, mam__u64 value) {
  return mam__or_relaxed_u64(word, value);
}

/* Writes a word in the host's memory, which the host reads. */
MAM__INLINE void mam__store_relaxed_system_u64(mam__u64 *word, mam__u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(mam__global(word)), "l"(value) : "memory");
}

/* A short rest while another thread works: 100 to 200 ns. */
MAM__INLINE void mam__pause(void) { __nanosleep(100); }
/* A rest of ns to twice as many, at most a millisecond. */
MAM__INLINE void mam__sleep(mam__u32 ns) { __nanosleep(ns); }
/* A number that is likely to differ between threads that ask at the same time. */
MAM__INLINE mam__u32 mam__salt(void) {
  mam__u32 clock, lane;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return (clock >> 2) + lane;
}
/* A time, counted from some moment. */
MAM__INLINE mam__u64 mam__time_ns(void) {
  mam__u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

MAM__INLINE mam__u32 mam__lowest_u32(mam__u32 value) { return (mam__u32)__ffs((int)value) - 1; }
MAM__INLINE mam__u32 mam__first_ones_u32(mam__u32 count) { /* shifts of PTX go up to 32, those of C++ up to 31 */
  mam__u32 zeros;
  asm("shl.b32 %0, 0xffffffff, %1;" : "=r"(zeros) : "r"(count));
  return ~zeros;
}
MAM__INLINE mam__u32 mam__lowest_u64(mam__u64 value) { return (mam__u32)__ffsll((long long)value) - 1; }
MAM__INLINE mam__u32 mam__leading_zeros_u32(mam__u32 value) { return (mam__u32)__clz((int)value); }
MAM__INLINE mam__u32 mam__leading_zeros_u64(mam__u64 value) { return (mam__u32)__clzll((long long)value); }
MAM__INLINE mam__u32 mam__ones_u32(mam__u32 value) { return (mam__u32)__popc(value); }
MAM__INLINE mam__u32 mam__ones_u64(mam__u64 value) { return (mam__u32)__popcll(value); }

MAM__INLINE mam__u32 mam__multiprocessor(void) {
  mam__u32 number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}
MAM__INLINE mam__u32 mam__warp_number(void) {
  mam__u32 number;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(number));
  return number;
}
MAM__INLINE mam__u32 mam__lane_number(void) {
  mam__u32 number;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(number));
  return number;
}
/* The calling lane, and the lanes below it. */
MAM__INLINE mam__u32 mam__lane_self(void) {
  mam__u32 mask;
  asm("mov.u32 %0, %%lanemask_eq;" : "=r"(mask));
  return mask;
}
MAM__INLINE mam__u32 mam__lane_below(void) {
  mam__u32 mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}
/* Whether the lane is the first of a group that it is in.  The compiler does not keep what this returns. */
MAM__INLINE int mam__is_first(mam__u32 group) {
  mam__u32 below;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
  return (group & below) == 0;
}

#else

/* ---- Host threads ---- */

#ifndef MAM__ATOMICS_STEP
#define MAM__ATOMICS_STEP() ((void)0)
#define MAM__ATOMICS_SEEN(value) (value)
#endif
#ifndef MAM__ATOMICS_LOAD
#define MAM__ATOMICS_LOAD() MAM__ATOMICS_STEP()
#define MAM__ATOMICS_STORE() MAM__ATOMICS_STEP()
#endif

#define MAM__HOST_LOAD(name, order, type)                                                                              \
  MAM__INLINE type name(const type *word) {                                                                            \
    MAM__ATOMICS_LOAD();                                                                                               \
    return MAM__ATOMICS_SEEN(__atomic_load_n(word, order));                                                            \
  }
#define MAM__HOST_STORE(name, order, type)                                                                             \
  MAM__INLINE void name(type *word, type value) {                                                                      \
    MAM__ATOMICS_STORE();                                                                                              \
    __atomic_store_n(word, value, order);                                                                              \
  }
#define MAM__HOST_FETCH(name, operation, order, type)                                                                  \
  MAM__INLINE type name(type *word, type value) {                                                                      \
    MAM__ATOMICS_STEP();                                                                                               \
    return MAM__ATOMICS_SEEN(operation(word, value, order));                                                           \
  }
#define MAM__HOST_CAS(name, order, failure_order, type)                                                                \
  MAM__INLINE type name(type *word, type expected, type desired) {                                                     \
    MAM__ATOMICS_STEP();                                                                                               \
    (void)__atomic_compare_exchange_n(word, &expected, desired, 0, order, failure_order);                              \
    return MAM__ATOMICS_SEEN(expected);                                                                                \
  }

MAM__HOST_LOAD(mam__load_relaxed_u16, __ATOMIC_RELAXED, mam__u16)
MAM__HOST_LOAD(mam__load_relaxed_u32, __ATOMIC_RELAXED, mam__u32)
MAM__HOST_LOAD(mam__load_acquire_u32, __ATOMIC_ACQUIRE, mam__u32)
MAM__HOST_LOAD(mam__load_relaxed_u64, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_LOAD(mam__load_acquire_u64, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_STORE(mam__store_relaxed_u16, __ATOMIC_RELAXED, mam__u16)
MAM__HOST_STORE(mam__store_relaxed_u32, __ATOMIC_RELAXED, mam__u32)
MAM__HOST_STORE(mam__store_release_u32, __ATOMIC_RELEASE, mam__u32)
MAM__HOST_STORE(mam__store_relaxed_u64, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_STORE(mam__store_release_u64, __ATOMIC_RELEASE, mam__u64)
MAM__HOST_STORE(mam__store_relaxed_system_u64, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_FETCH(mam__add_relaxed_u32, __atomic_fetch_add, __ATOMIC_RELAXED, mam__u32)
MAM__HOST_FETCH(mam__exchange_acq_rel_u32, __atomic_exchange_n, __ATOMIC_ACQ_REL, mam__u32)
MAM__HOST_FETCH(mam__add_relaxed_u64, __atomic_fetch_add, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_FETCH(mam__add_acquire_u64, __atomic_fetch_add, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_FETCH(mam__exchange_release_u64, __atomic_exchange_n, __ATOMIC_RELEASE, mam__u64)
MAM__HOST_FETCH(mam__exchange_acq_rel_u64, __atomic_exchange_n, __ATOMIC_ACQ_REL, mam__u64)
MAM__HOST_FETCH(mam__and_relaxed_u64, __atomic_fetch_and, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_FETCH(mam__and_acquire_u64, __atomic_fetch_and, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_FETCH(mam__and_release_u64, __atomic_fetch_and, __ATOMIC_RELEASE, mam__u64)
MAM__HOST_FETCH(mam__and_acq_rel_u64, __atomic_fetch_and, __ATOMIC_ACQ_REL, mam__u64)
MAM__HOST_FETCH(mam__or_relaxed_u64, __atomic_fetch_or, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_FETCH(mam__or_acquire_u64, __atomic_fetch_or, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_FETCH(mam__or_release_u64, __atomic_fetch_or, __ATOMIC_RELEASE, mam__u64)
MAM__HOST_FETCH(mam__or_acq_rel_u64, __atomic_fetch_or, __ATOMIC_ACQ_REL, mam__u64)
MAM__HOST_FETCH(mam__or_acq_rel_u32, __atomic_fetch_or, __ATOMIC_ACQ_REL, mam__u32)
MAM__HOST_FETCH(mam__add_acq_rel_u32, __atomic_fetch_add, __ATOMIC_ACQ_REL, mam__u32)
MAM__HOST_CAS(mam__cas_relaxed_u64, __ATOMIC_RELAXED, __ATOMIC_RELAXED, mam__u64)
MAM__HOST_CAS(mam__cas_acq_rel_u32, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE, mam__u32)
MAM__HOST_CAS(mam__cas_acquire_u64, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_CAS(mam__cas_acq_rel_u64, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE, mam__u64)

/* Each of these has its order on the host, since thread sanitizers do not understand barriers. */
MAM__HOST_CAS(mam__cas_between_barriers_u64, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE, mam__u64)
MAM__HOST_FETCH(mam__and_after_barrier_u64, __atomic_fetch_and, __ATOMIC_ACQ_REL, mam__u64)
MAM__HOST_FETCH(mam__exchange_after_barrier_u64, __atomic_exchange_n, __ATOMIC_ACQ_REL, mam__u64)
MAM__INLINE void mam__barrier(void) {}
MAM__INLINE mam__u64 mam__cas_between_barriers_if_u64(int wanted, mam__u64 *word, mam__u64 expected, mam__u64 desired) {
  return wanted ? mam__cas_between_barriers_u64(word, expected, desired) : expected;
}
MAM__INLINE mam__u64 mam__load_relaxed_if_u64(int wanted, const mam__u64 *word, mam__u64 otherwise) {
  return wanted ? mam__load_relaxed_u64(word) : otherwise;
}
MAM__INLINE mam__u64 mam__or_relaxed_if_u64(int wanted, mam__u64 *word, mam__u64 value, mam__u64 otherwise) {
  return wanted ? mam__or_relaxed_u64(word, value) : otherwise;
}
MAM__INLINE void mam__barrier_all(void) {}
/* All threads agree on the order of changes of one word.  This look is a change that adds 0, so it has a place in that
 * order. */
MAM__INLINE mam__u32 mam__look_after_change_u32(mam__u32 *word) { return mam__add_acq_rel_u32(word, 0); }
MAM__INLINE mam__u32 mam__look_after_barrier_u32(mam__u32 *word) { return mam__add_acq_rel_u32(word, 0); }
MAM__INLINE mam__u64 mam__or_before_barrier_u64(mam__u64 *word, mam__u64 value) {
  return mam__or_acq_rel_u64(word, value);
}

/* A test may define what waiting means, the time, and what is random. */
#ifndef MAM__ATOMICS_PAUSE
#define MAM__ATOMICS_PAUSE() ((void)0)
#endif
#ifndef MAM__ATOMICS_TIME_NS
#define MAM__ATOMICS_TIME_NS() 0
#endif
#ifndef MAM__ATOMICS_SALT
#define MAM__ATOMICS_SALT() 0
#endif
MAM__INLINE void mam__pause(void) { MAM__ATOMICS_PAUSE(); }
MAM__INLINE void mam__sleep(mam__u32 ns) { (void)ns, MAM__ATOMICS_PAUSE(); }
MAM__INLINE mam__u64 mam__time_ns(void) { return MAM__ATOMICS_TIME_NS(); }
MAM__INLINE mam__u32 mam__salt(void) { return MAM__ATOMICS_SALT(); }

MAM__INLINE mam__u32 mam__lowest_u32(mam__u32 value) { return (mam__u32)__builtin_ffs((int)value) - 1; }
/* A number whose lowest count bits are 1; count is at most 63, and what does not fit is left out. */
MAM__INLINE mam__u32 mam__first_ones_u32(mam__u32 count) { return (mam__u32)((1ull << count) - 1); }
MAM__INLINE mam__u32 mam__lowest_u64(mam__u64 value) { return (mam__u32)__builtin_ffsll((long long)value) - 1; }
MAM__INLINE mam__u32 mam__leading_zeros_u32(mam__u32 value) { return value == 0 ? 32 : (mam__u32)__builtin_clz(value); }
MAM__INLINE mam__u32 mam__leading_zeros_u64(mam__u64 value) {
  return value == 0 ? 64 : (mam__u32)__builtin_clzll(value);
}
MAM__INLINE mam__u32 mam__ones_u32(mam__u32 value) { return (mam__u32)__builtin_popcount(value); }
MAM__INLINE mam__u32 mam__ones_u64(mam__u64 value) { return (mam__u32)__builtin_popcountll(value); }

#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(MAM__ATOMICS_LANES)

/* ---- Lanes that act together ----
 *
 * A collective (shuffle, vote, match, __syncwarp) names lanes, and all of them make it.  Lanes that part at a branch
 * meet again where the branch ends.  Other lanes may run on beside them there, for instance from another iteration of a
 * loop. So two things can be known of a mask, and libmam's device code relies on no third:
 *
 * 1. At once.  Between __activemask() and a match or a vote lies nothing but arithmetic.  The lanes that __activemask()
 *    names, and no others, make the collective.  __activemask() is used for nothing else: it says which lanes are here,
 *    not which will come.
 * 2. Later.  All lanes of one mask take the same branches to the collective, or lanes that leave are taken out of the
 *    mask, by arithmetic that all of them do alike.  The collective is a shuffle, and it is made again until all lanes
 *    of the mask made it together.
 *
 * Why again: ptxas (13.0) may assume that a mask is the same in all lanes that run together, whatever it is made of.
 * It assumes it of votes, of some matches, and of everything in a function that calls itself within a loop.  It then
 * looks if the mask of one lane is here, and if so lets all lanes that are here make the collective.  A lane of another
 * set beside it reads a lane that has not arrived, and a vote or a reduction mixes the sets.  So no vote and no
 * reduction is made later in code that becomes a part of the program's functions, but for mam__mask_alive.  A shuffle
 * is right for each set of which all lanes are here, and a vote beside it, made by the same lanes, says which are.  A
 * lane that finds one missing makes both again.  The sets that were complete have left then, and in the end ptxas's
 * look fails, and the hardware waits for the lane that is missing.
 *
 * libmam's own functions do not call themselves.  There mam__mask_of is enough: ptxas compares a mask to which the
 * lane's own bit was added. */
struct mam__lanes {
  mam__u32 mask, rank, count;
};

/* Adds the calling lane to a mask that has it already.  The compiler then knows that the mask may differ between lanes,
 * since a lane's own bit does. */
MAM__INLINE mam__u32 mam__mask_of(mam__u32 mask) { return mask | mam__lane_self(); }
/* The lanes that are here together with the calling one and have the same value. */
MAM__COLLECTIVE mam__u32 mam__mask_alike_u64(mam__u64 value) {
  return mam__mask_of(__match_any_sync(__activemask(), value));
}

MAM__INLINE struct mam__lanes mam__lanes_of(mam__u32 mask) {
  struct mam__lanes lanes = {mask, mam__ones_u32(mask & mam__lane_below()), mam__ones_u32(mask)};
  return lanes;
}
/* A lane that acts alone. */
MAM__INLINE struct mam__lanes mam__lanes_alone(void) {
  struct mam__lanes lanes = {mam__lane_self(), 0, 1};
  return lanes;
}
/* All of the lanes come here.  What each did before comes before what any of them does after. */
MAM__COLLECTIVE void mam__lanes_sync(struct mam__lanes lanes) { __syncwarp(lanes.mask); }
/* The lanes that make this vote with the calling one.  The condition is always true, but the compiler does not know
 * that: else it would not ask. */
MAM__COLLECTIVE mam__u32 mam__mask_vote(mam__u32 mask) {
  mam__u32 here;
#ifdef __CUDA_ARCH__
  asm volatile("{ .reg .pred is; setp.ne.u32 is, %1, 0; vote.sync.ballot.b32 %0, is, %1; }"
               : "=r"(here)
               : "r"(mask)
               : "memory");
#else
  here = __ballot_sync(mask, mask != 0);
#endif
  return here;
}
/* Whether the lanes of the mask that make a vote with the calling one are all of them. */
MAM__COLLECTIVE int mam__mask_is_here(mam__u32 mask) { return (mask & ~mam__mask_vote(mask)) == 0; }
/* The lanes of a mask that a program gives, without those that have ended or that a small thread block does not have.
 * The others all come here.  A lane that is missing in as many votes as a warp has lanes has ended: each vote that it
 * missed by ptxas's assumption let another set go on (see above). */
MAM__COLLECTIVE mam__u32 mam__mask_alive(mam__u32 mask) {
  mam__u32 here = 0;
  MAM__LOOP
  for (int votes = 0; votes < 32 && (mask & ~here) != 0; votes++)
    here = mam__mask_vote(mask);
  return mask & here;
}
/* A lane's value, for all lanes of the mask, which all come here.  What that lane did and saw before comes before what
 * the others do after; a shuffle alone orders no memory. */
MAM__COLLECTIVE mam__u64 mam__mask_one_u64(mam__u32 mask, mam__u64 value, mam__u32 lane) {
  mam__u64 one;
  MAM__LOOP
  do {
    __syncwarp(mask);
    one = __shfl_sync(mask, value, (int)lane);
  } while (!mam__mask_is_here(mask));
  return one;
}
MAM__COLLECTIVE mam__u64 mam__mask_first_u64(mam__u32 mask, mam__u64 value) {
  return mam__mask_one_u64(mask, value, mam__lowest_u32(mask));
}
MAM__COLLECTIVE mam__u32 mam__mask_first_u32(mam__u32 mask, mam__u32 value) {
  __syncwarp(mask);
  return __shfl_sync(mask, value, (int)mam__lowest_u32(mask));
}
MAM__COLLECTIVE mam__u64 mam__lanes_first_u64(struct mam__lanes lanes, mam__u64 value) {
  return mam__mask_first_u64(lanes.mask, value);
}
MAM__COLLECTIVE mam__u32 mam__lanes_first_u32(struct mam__lanes lanes, mam__u32 value) {
  return mam__mask_first_u32(lanes.mask, value);
}
/* Whether it is so for all of the lanes, which all come here. */
MAM__COLLECTIVE int mam__lanes_all(struct mam__lanes lanes, int is_so) { return __all_sync(lanes.mask, is_so); }

#else

/* A host thread is a warp of one lane. */
struct mam__lanes {
  mam__u32 mask, rank, count;
};

MAM__INLINE struct mam__lanes mam__lanes_alone(void) {
  struct mam__lanes lanes = {1, 0, 1};
  return lanes;
}
MAM__INLINE void mam__lanes_sync(struct mam__lanes lanes) { (void)lanes; }
MAM__INLINE mam__u64 mam__lanes_first_u64(struct mam__lanes lanes, mam__u64 value) { return (void)lanes, value; }
MAM__INLINE mam__u32 mam__lanes_first_u32(struct mam__lanes lanes, mam__u32 value) { return (void)lanes, value; }
MAM__INLINE int mam__lanes_all(struct mam__lanes lanes, int is_so) { return (void)lanes, is_so; }

#endif

#endif /* MAM_DETAIL_ATOMICS_H */
