#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Compiles the device header by nvcc as its users may: for the oldest, a usual and the newest GPU, with and without
# relocatable device code, checked and not, by several standards of C++; and counts what it costs a kernel in
# registers.  A kernel with one call has to launch with 1,024 threads, and its stack has to leave a part of the default
# to the program.
# usage: check_device.sh [INCLUDEDIR]    by default the source's; NVCC from the environment
set -u

here=${srcdir:-.}
include=${1:-$here/include}
source=$here/tests/tree/device_header.cu
: "${NVCC=}"
[ -n "$NVCC" ] || { echo "SKIP: no CUDA compiler was configured"; exit 77; }
[ -r "$include/mam/device.cuh" ] || { echo "FAIL: no $include/mam/device.cuh"; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/check_device.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
compiled=$source

# MAM_TEST_SHORT: the calls on one GPU, and each header once.
short=no
[ -z "${MAM_TEST_SHORT-}" ] || short=yes
known=$("$NVCC" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p' | sort -n)
architectures=$(printf '%s\n' "$known" | grep -x -e 75 -e 90 -e "$(printf '%s\n' "$known" | tail -n 1)")
launched=$(printf '%s\n' "$known" | grep -x -e 75 -e 80 -e 86 -e 90 -e 100 -e 120)
[ $short = no ] || architectures='' launched=90
[ -n "$launched" ] || { echo "FAIL: $NVCC names no GPU"; exit 1; }

# compile WHAT FLAG...: a warning is a failure.
compile() {
  what=$1
  shift
  if "$NVCC" "$@" -O3 -I"$include" -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -c -o "$work/object.o" \
    "$compiled" >"$work/log" 2>&1; then
    echo "ok: $what"
  else
    echo "FAIL: $what"
    head -n 20 "$work/log"
    failed=1
  fi
}

# images FLAG...: what ptxas says of each kernel: lines "KERNEL REGISTERS STACK".  STACK is all bytes that its calls may
# need, "?" where ptxas does not know them, since a function may be called by itself, or where there is no call.
images() {
  "$NVCC" "$@" -O3 -I"$include" -Werror all-warnings -Xptxas -v -cubin -o "$work/object.cubin" "$compiled" \
    >"$work/log" 2>&1 || return
  awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2] }
       /Used [0-9]+ registers/ && name != "" {
         registers = "?"
         stack = "?"
         for (i = 1; i < NF; i++) {
           if ($i == "Used") registers = $(i + 1)
           if ($i == "cumulative") stack = $(i - 2)
         }
         print name, registers, stack
         name = ""
       }' "$work/log"
}

# of KERNEL COLUMN FILE: a number of what images or linked printed.
of() {
  awk -v kernel="$1" -v column="$2" '$1 == kernel { print $column }' "$3"
}

# judge WHAT NUMBER MOST UNIT: no number is a failure too.
judge() {
  case $2 in
  '' | *[!0-9]*) echo "FAIL: $1: it is not known how many $4"; failed=1 ;;
  *)
    if [ "$2" -gt "$3" ]; then
      echo "FAIL: $1: $2 $4, more than $3"
      failed=1
    else
      echo "ok: $1: $2 $4, at most $3"
    fi
    ;;
  esac
}

# What a heap costs a kernel in registers: a kernel without one uses 32 over a range of live numbers, since the compiler
# spends on speed what it has; the least of them is judged.  The goal is 16 more.  Up to sm_90 it is missed by 8: ptxas
# keeps what is live over a call in blocks of eight registers.
registers_check() {
  sm=$1 least=4 most=48
  [ "$sm" -gt 90 ] || most=56
  [ "$sm" -ne 75 ] || most=58 # its multiprocessors have 64 for each of the 1,024 threads that they run
  for try in 4 5 6 7 8 9 10; do
    used=$("$NVCC" -arch="sm_$sm" -O3 -DLIVE_ALONE -DLIVE="$try" -Xptxas -v -cubin -o "$work/object.cubin" "$source" 2>&1 |
      sed -n 's/.*Used \([0-9]*\) registers.*/\1/p')
    [ "${used:-99}" -lt 32 ] || { least=$try; break; }
  done
  [ "${used:-99}" -eq 32 ] || { echo "FAIL: sm_$sm: no kernel without a heap uses 32 registers"; failed=1; }
  images -arch="sm_$sm" -DLIVE="$least" >"$work/registers"
  stack_is_known "sm_$sm" "$work/registers"
  for kernel in user_kernel_malloc user_kernel_free user_kernel_both; do
    judge "sm_$sm: $kernel, which uses 32 without a heap" "$(of $kernel 2 "$work/registers")" "$most" registers
  done
}

# stack_is_known WHAT FILE: of a kernel that calls everything, as images printed it.
stack_is_known() {
  if grep -q '^every_function ' "$2" && ! grep '^every.* ?$' "$2"; then
    echo "ok: $1: the stack is known"
  else
    echo "FAIL: $1: the stack is not known"
    head -n 20 "$work/log"
    failed=1
  fi
}

# A kernel with one call of mam_malloc, and one with one of mam_free; the same with launch bounds.  They have to launch
# with 1,024 threads, and their stack has to leave a part of the default, 1,024 bytes, to the program.
one_call=$work/one_call.cu
cat >"$one_call" <<END
#include <mam/device.cuh>
#define KERNELS(name, bounds)                                                                            \\
  extern "C" __global__ void bounds name##malloc(mam_heap heap, void **blocks, unsigned bytes) {         \\
    blocks[threadIdx.x] = mam_malloc(heap, bytes);                                                       \\
  }                                                                                                      \\
  extern "C" __global__ void bounds name##free(mam_heap heap, void **blocks) { mam_free(heap, blocks[threadIdx.x]); }
#ifdef __CUDACC_DEBUG__
KERNELS(debug_, )
#else
KERNELS(one_, )
extern "C" __global__ void one_chunk(mam_heap heap, void **blocks) { blocks[threadIdx.x] = mam_malloc(heap, 64); }
KERNELS(bound_1024_, __launch_bounds__(1024))
KERNELS(bound_768_, __launch_bounds__(768))
#endif
END
# The man page promises a stack of at most 448 bytes, 400 with relocatable device code; for debuggers 2,900 and thread
# blocks of 768, on sm_90 of 1,024.  With relocatable device code the called functions have 32 registers, and few
# kernels need more than these.
# A request of a chunk has 344 and 384: with -rdc=true seven frames of 96 bytes, as a recursive function has, and such a
# request fit into the default stack.  Without, its stack counts what only a parked long run would need.
registers_most=40 debug_registers_most=48 stack_most=448 relocatable_stack_most=400
chunk_stack_most=384 relocatable_chunk_stack_most=344 debug_stack_most=2900
free_stack_most=240 relocatable_free_stack_most=208

# linked SM OBJECT...: what the linker says of a program with relocatable device code: lines "KERNEL REGISTERS STACK".
linked() {
  code=sm_$1
  shift
  "$NVCC" -arch="$code" -dlink -Xnvlink -v -o "$work/linked.o" "$@" 2>&1 |
    awk '/Function properties for/ { split($0, part, "\047"); name = part[2] }
         /used [0-9]+ registers/ { registers = stack = ""
           for (i = 2; i <= NF; i++) {
             if ($i ~ /^registers/) registers = $(i - 1)
             if ($i ~ /^stack/) stack = $(i - 1)
           }
           print name, registers, stack }'
}
# relocatable SM FLAG FILE OBJECT.  If it fails, no object of an earlier call is there to be judged.
relocatable() {
  rm -f "$4"
  "$NVCC" -arch="sm_$1" "$2" -I"$include" -Werror all-warnings -rdc=true -c -o "$4" "$3" >"$work/log" 2>&1
}

# A file that does not include mam/replace.cuh takes malloc for CUDA's own, over which it keeps values from R32 on.  So
# no function that it may come to, in a file that does include it, may have more than 32 registers.
cat >"$work/replaced.cu" <<END
#include <mam/replace.cuh>
END
cat >"$work/plain.cu" <<END
extern "C" __global__ void plain_malloc(void **blocks, unsigned bytes) { blocks[threadIdx.x] = malloc(bytes); }
extern "C" __global__ void plain_free(void **blocks) { free(blocks[threadIdx.x]); }
extern "C" __global__ void plain_aligned(void **blocks, unsigned bytes) {
  blocks[threadIdx.x] = __nv_aligned_device_malloc(bytes, 64);
}
END
sed -e 1i'#include <mam/replace.cuh>' -e s/plain_/with_/ "$work/plain.cu" >"$work/with.cu"
sed -e '/with_malloc/d' -e '/with_free/d' "$work/with.cu" >"$work/with_aligned.cu"
# The most bytes of stack of a call of malloc, free or __nv_aligned_device_malloc by mam/replace.cuh: a recursive kernel
# has 1,024 by default.
replaced_stack_most() {
  case $1 in
  aligned) echo 496 ;;
  malloc) echo 464 ;;
  *) echo 272 ;;
  esac
}
plain_check() {
  sm=$1
  relocatable "$sm" -O3 "$work/plain.cu" "$work/plain.o"
  for flag in -O3 -G; do
    relocatable "$sm" $flag "$work/replaced.cu" "$work/replaced.o"
    linked "$sm" "$work/replaced.o" "$work/plain.o" >"$work/plain"
    for call in malloc free aligned; do
      judge "sm_$sm: $call of a file without the header, beside one compiled by $flag" \
        "$(of plain_$call 2 "$work/plain")" 32 registers
      [ $flag = -G ] || judge "sm_$sm: $call of such a file" "$(of plain_$call 3 "$work/plain")" \
        "$(replaced_stack_most $call)" "bytes of stack"
    done
  done
  compiled=$work/with.cu
  images -arch="sm_$sm" >"$work/with"
  compiled=$source
  for call in malloc free aligned; do
    judge "sm_$sm: $call of a file with the header" "$(of with_$call 3 "$work/with")" "$(replaced_stack_most $call)" \
      "bytes of stack"
  done
}

one_call_check() {
  sm=$1
  compiled=$one_call
  relocatable "$sm" -O3 "$one_call" "$work/object-O3.o"
  relocatable "$sm" -G "$one_call" "$work/object-G.o"
  linked "$sm" "$work/object-G.o" "$work/object-O3.o" >"$work/linked"
  images -arch="sm_$sm" >"$work/unlinked"
  images -arch="sm_$sm" -G >"$work/debug"
  compiled=$source
  judge "sm_$sm: one malloc of a chunk, relocatable" "$(of one_chunk 3 "$work/linked")" $relocatable_chunk_stack_most \
    "bytes of stack"
  judge "sm_$sm: one malloc of a chunk" "$(of one_chunk 3 "$work/unlinked")" $chunk_stack_most "bytes of stack"
  debug_alone_most=80
  [ "$sm" -ne 90 ] || debug_alone_most=64
  for call in malloc free; do
    judge "sm_$sm: one $call, relocatable" "$(of one_$call 2 "$work/linked")" $registers_most registers
    most=$stack_most relocatable_most=$relocatable_stack_most
    [ $call = malloc ] || most=$free_stack_most relocatable_most=$relocatable_free_stack_most
    judge "sm_$sm: one $call, relocatable" "$(of one_$call 3 "$work/linked")" "$relocatable_most" "bytes of stack"
    judge "sm_$sm: one $call" "$(of one_$call 3 "$work/unlinked")" "$most" "bytes of stack"
    for way in linked debug; do
      what="sm_$sm: one $call, debugging" debug_most=$debug_alone_most
      [ $way = debug ] || what="$what, relocatable" debug_most=$debug_registers_most
      judge "$what" "$(of debug_$call 2 "$work/$way")" $debug_most registers
      judge "$what" "$(of debug_$call 3 "$work/$way")" $debug_stack_most "bytes of stack"
    done
    for threads in 1024 768; do
      most=$((65536 / threads / 8 * 8))
      judge "sm_$sm: one $call, launch bounds of $threads, relocatable" "$(of bound_${threads}_$call 2 "$work/linked")" \
        $most registers
      judge "sm_$sm: one $call, launch bounds of $threads" "$(of bound_${threads}_$call 2 "$work/unlinked")" $most registers
    done
  done
}

for sm in $launched; do
  one_call_check "$sm"
done

for sm in $architectures; do
  registers_check "$sm"
  plain_check "$sm"
  images -arch="sm_$sm" -DMAM_HEAP_CHECKED=1 >"$work/checked"
  stack_is_known "sm_$sm, checked" "$work/checked"
  compile "sm_$sm, relocatable device code" -arch="sm_$sm" -rdc=true
  compile "sm_$sm, debugging" -arch="sm_$sm" -G
  images -arch="sm_$sm" -G -DMAM_HEAP_RECORDED=1 >"$work/recorded"
  stack_is_known "sm_$sm, debugging, recorded" "$work/recorded"
done
[ $short = yes ] || compile "recorded" -arch=sm_90 -DMAM_HEAP_RECORDED=1
[ $short = yes ] || for standard in c++14 c++20; do # c++17 is what nvcc takes by itself
  compile "$standard" -arch=sm_90 -std="$standard"
done
# A program may use one function and not the others, or only the host's header beside it.
compiled=$work/one.cu
cat >"$compiled" <<END
#include <mam/device.cuh>
#include <mam/heap.h>
__global__ void kernel(mam_heap heap, void **blocks) { blocks[threadIdx.x] = mam_malloc(heap, 64); }
END
compile "one function alone" -arch=sm_90
# malloc, free, new and delete of kernels that know nothing of it: in two files of one program.  Host code keeps its
# own, so no object may define the operators.
replaced=$here/tests/tree/device_replace.cu
replace() {
  how=$1
  shift
  compiled=$replaced
  compile "malloc and new replaced$how" "$@" -DMAIN
  mv "$work/object.o" "$work/first.o" 2>/dev/null
  compile "malloc and new replaced$how, another file" "$@" -DSECOND
  if "$NVCC" "$@" -o "$work/program" "$work/first.o" "$work/object.o" >"$work/log" 2>&1 && "$work/program"; then
    echo "ok: malloc and new replaced$how, linked; the host's are its own"
  else
    echo "FAIL: malloc and new replaced$how, linked"
    head -n 20 "$work/log"
    failed=1
  fi
}
# replace_ptx FLAG... FILE: the file as PTX.
replace_ptx() {
  "$NVCC" -O3 -I"$include" -Xcompiler -w -ptx -o "$work/replace.ptx" "$@" >"$work/log" 2>&1
}
# replace_complete WHAT FLAG... FILE: nothing is left of CUDA's own allocator; with -rdc the file has all of it for files
# that know nothing of the header.
replace_complete() {
  how=$1
  shift
  if replace_ptx "$@" && ! grep -E '^\.extern .*(malloc|free)' "$work/replace.ptx" && ! grep -E '^	_Zn[wa]|^	_Zd[la]' \
    "$work/replace.ptx"; then
    echo "ok: no request goes to CUDA's own heap$how"
  else
    echo "FAIL: a request goes to CUDA's own heap$how"
    head -n 20 "$work/log"
    failed=1
  fi
}
# With -rdc=true the handle is no constant, because of nvlink (mam/detail/replace_host.cuh).
replace_weak() {
  if grep -q '^\.const.*mam_replaced_heap' "$work/replace.ptx"; then
    echo "FAIL: -rdc: the handle of the heap is a constant"
    failed=1
  fi
  for function in malloc free __cuda_syscall_aligned_malloc; do
    grep -Eq "^\.weak \.func (.*\) )?$function\(" "$work/replace.ptx" && continue
    echo "FAIL: -rdc: other files would not find $function"
    failed=1
  done
}
# What 15 more calls of malloc cost, whose size is not known: two calls each, for chunks and for whole pages, and not a
# register that the first one has not cost.
replace_sites() {
  replace_ptx -arch=sm_90 -DSITES=1 "$replaced"
  one=$(wc -l <"$work/replace.ptx")
  replace_ptx -arch=sm_90 -DSITES=16 "$replaced"
  each=$((($(wc -l <"$work/replace.ptx") - one) / 15))
  verdict=ok
  [ "$one" -gt 0 ] && [ "$each" -gt 0 ] && [ "$each" -le 64 ] || verdict=FAIL failed=1
  echo "$verdict: each call of malloc is $each lines of PTX"
  for sites in 1 16; do
    "$NVCC" -arch=sm_90 -O3 -I"$include" -Xcompiler -w -DSITES="$sites" -Xptxas -v -cubin -o "$work/object.cubin" \
      "$replaced" 2>&1 |
      awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2] }
           /Used [0-9]+ registers/ && name == "sites_kernel" { for (i = 1; i < NF; i++) if ($i == "Used") print $(i + 1) }' \
        >"$work/sites.$sites"
  done
  verdict=ok
  [ -s "$work/sites.1" ] && [ "$(cat "$work/sites.16")" -le "$(cat "$work/sites.1")" ] || verdict=FAIL failed=1
  echo "$verdict: $(cat "$work/sites.16") registers with 16 calls of malloc, $(cat "$work/sites.1") with one"
}
cat >"$compiled" <<END
#include <mam/warp.cuh>
#include <mam/warp.h>
__global__ void kernel(mam_heap heap, void **blocks) { blocks[threadIdx.x] = mam_warp_malloc(mam_warp_start(heap), 64); }
END
compile "warp heaps beside the host's header" -arch=sm_90
replace "" -arch=sm_90
[ $short = no ] || exit $failed
replace ", c++14" -arch=sm_90 -std=c++14
replace ", relocatable device code" -arch=sm_90 -rdc=true
replace ", recorded" -arch=sm_90 -DMAM_HEAP_RECORDED=1
replace ", debugging" -arch=sm_90 -G -Xptxas -suppress-stack-size-warning
for file in "$work/with_aligned.cu" "$replaced"; do # the last one is looked at further
  for flag in "" -G -rdc=true; do
    # shellcheck disable=SC2086
    replace_complete ": $(basename "$file") $flag" -arch=sm_90 $flag "$file"
  done
done
replace_weak
replace_sites
compiled=$replaced
if [ -d "$(dirname "$(dirname "$(readlink -f "$(command -v "$NVCC")")")")/include/cccl" ]; then
  compile "malloc and new replaced, CUB's and thrust's headers after it" -arch=sm_90 -std=c++17 -DBETWEEN_OTHERS
fi
compiled=$work/none.cu
echo '#include <mam/device.cuh>' >"$compiled"
compile "no function at all" -arch=sm_90
exit $failed
