#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Compiles the device header by nvcc as its users may: for the oldest, a usual and the newest GPU, with and without
# relocatable device code, checked and not, by several standards of C++; and counts what it costs a kernel in
# registers: one that uses 32 may gain 16.  A kernel with one call has to launch with 1,024 threads, and its stack has to
# leave half of the default to the program.
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

newest=$("$NVCC" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
architectures=$(for sm in 75 90 "$newest"; do
  "$NVCC" --list-gpu-code | grep -qx "sm_$sm" && echo "$sm"
done | sort -nu)
[ -n "$architectures" ] || { echo "FAIL: $NVCC names no GPU"; exit 1; }

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

# registers FLAG...: lines "KERNEL REGISTERS".
registers() {
  "$NVCC" "$@" -O3 -I"$include" -Xptxas -v -cubin -o "$work/object.cubin" "$source" 2>&1 |
    awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2] }
         /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") print name, $(i + 1) }'
}

# Prints what the kernels with a heap use with so many numbers live, against base; fails above 16 more if it is to judge.
# Before sm_80 it is a file without warp heaps: with them it is 2 more than that.
registers_compare() {
  sm=$1 live=$2 base=$3 judge=$4
  more=16
  [ "$sm" -ge 80 ] || more=32 # the way of the last resort takes 56 registers there
  warps=
  [ "$sm" -ge 80 ] || warps=-DWITHOUT_WARPS
  registers -arch="sm_$sm" -DLIVE="$live" $warps >"$work/registers"
  for kernel in user_kernel_malloc user_kernel_free user_kernel_both; do
    used=$(awk -v kernel="$kernel" '$1 == kernel { print $2 }' "$work/registers")
    verdict=ok
    [ -n "$used" ] && { [ "$used" -le $((base + more)) ] || [ "$judge" = no ]; } || verdict=FAIL failed=1
    echo "$verdict: sm_$sm: $kernel: ${used:-no} registers with a heap, $base without ($live numbers live)"
  done
}

# A kernel without a heap uses 32 registers over a range of live numbers, since the compiler spends on speed what it
# has.  The least of them is judged; the most, where not one register is to spare, is printed beside it.
registers_check() {
  sm=$1 least=4 most=4 base=0
  for try in 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    used=$(registers -arch="sm_$sm" -DLIVE_ALONE -DLIVE="$try" | awk '{ print $2 }')
    [ "${used:-99}" -le 32 ] || break
    [ "$used" -eq "$base" ] || least=$try
    most=$try base=$used
  done
  registers_compare "$sm" "$least" "$base" yes
  [ "$most" -eq "$least" ] || registers_compare "$sm" "$most" "$base" no
}

# The stack of a kernel that calls everything: unknown, if a function may be called by itself, it would be too small.
stack_check() {
  sm=$1
  shift
  known=$("$NVCC" "$@" -arch="sm_$sm" -O3 -I"$include" -Xptxas -v -cubin -o "$work/object.cubin" "$source" 2>&1 |
    awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2] }
         /Used [0-9]+ registers/ && name ~ /^every/ { if (/cumulative stack size/) known++; else unknown++ }
         END { print known + 0, unknown + 0 }')
  case $known in
  [1-9]*\ 0) echo "ok: sm_$sm: the stack is known" ;;
  *) echo "FAIL: sm_$sm: the stack is not known: $known"; failed=1 ;;
  esac
}

# A kernel with one call of mam_malloc, and one with one of mam_free; BOUNDS: its launch bounds.
one_call=$work/one_call.cu
cat >"$one_call" <<END
#include <mam/device.cuh>
extern "C" __global__ void BOUNDS one_malloc(mam_heap heap, void **blocks, unsigned bytes) {
  blocks[threadIdx.x] = mam_malloc(heap, bytes);
}
extern "C" __global__ void BOUNDS one_free(mam_heap heap, void **blocks) { mam_free(heap, blocks[threadIdx.x]); }
END
# The goal for the stack is 512 bytes as well: what is above that, on the oldest GPU by most, is not reached.
registers_most=64 registers_goal=48 stack_most=640

# judge WHAT NUMBER MOST UNIT: no number is a failure too.
judge() {
  if [ -z "$2" ]; then
    echo "FAIL: $1: it is not known how many $4"
    failed=1
  elif [ "$2" -gt "$3" ]; then
    echo "FAIL: $1: $2 $4, more than $3"
    failed=1
  else
    echo "ok: $1: $2 $4, at most $3"
  fi
}

# What the linker says of relocatable device code: lines "KERNEL REGISTERS STACK".
linked() {
  "$NVCC" -arch="sm_$1" -O3 -I"$include" -DBOUNDS= -rdc=true -c -o "$work/object.o" "$one_call" >"$work/log" 2>&1 || return
  "$NVCC" -arch="sm_$1" -dlink -Xnvlink -v -o "$work/linked.o" "$work/object.o" 2>&1 |
    awk '/Function properties for/ { split($0, part, "\047"); name = part[2] }
         /used [0-9]+ registers/ { registers = stack = ""
           for (i = 2; i <= NF; i++) {
             if ($i ~ /^registers/) registers = $(i - 1)
             if ($i ~ /^stack/) stack = $(i - 1)
           }
           print name, registers, stack }'
}

# Without relocatable device code: lines "KERNEL STACK", without a number where the compiler does not know it.
unlinked() {
  "$NVCC" -arch="sm_$1" -O3 -I"$include" -DBOUNDS= -Xptxas -v -cubin -o "$work/object.cubin" "$one_call" 2>&1 |
    awk '/Stack size for entry function/ { split($0, part, "\047"); unknown[part[2]] = 1 }
         /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
         /Function properties for one_/ { frame = 1; next }
         frame && /bytes stack frame/ { stack[name] = $1; frame = 0 }
         /Used [0-9]+ registers/ && name != "" { for (i = 5; i <= NF; i++)
             if ($i == "stack" && $(i - 1) == "cumulative") stack[name] = $(i - 3) + 0
           kernels[name] = 1; name = "" }
         END { for (name in kernels) print name, (name in unknown ? "" : stack[name]) }'
}

one_call_check() {
  sm=$1
  compiled=$one_call
  linked "$sm" >"$work/linked"
  unlinked "$sm" >"$work/unlinked"
  for kernel in one_malloc one_free; do
    used=$(awk -v kernel=$kernel '$1 == kernel { print $2 }' "$work/linked")
    judge "sm_$sm: $kernel, relocatable" "$used" $registers_most registers
    [ "${used:-0}" -le $registers_goal ] || echo "note: sm_$sm: $kernel, relocatable: the goal is $registers_goal registers"
    judge "sm_$sm: $kernel, relocatable" "$(awk -v kernel=$kernel '$1 == kernel { print $3 }' "$work/linked")" \
      $stack_most "bytes of stack"
    judge "sm_$sm: $kernel" "$(awk -v kernel=$kernel '$1 == kernel { print $2 }' "$work/unlinked")" $stack_most \
      "bytes of stack"
  done
  for threads in 1024 768; do
    compile "sm_$sm, launch bounds of $threads" -arch="sm_$sm" "-DBOUNDS=__launch_bounds__($threads)"
    compile "sm_$sm, launch bounds of $threads, relocatable device code" -arch="sm_$sm" -rdc=true \
      "-DBOUNDS=__launch_bounds__($threads)"
  done
  compiled=$source
}

for sm in 75 80 86 90 100 120; do
  "$NVCC" --list-gpu-code | grep -qx "sm_$sm" && one_call_check "$sm"
done

for sm in $architectures; do
  stack_check "$sm"
  stack_check "$sm" -DMAM_HEAP_CHECKED=1
  compile "sm_$sm" -arch="sm_$sm"
  compile "sm_$sm, relocatable device code" -arch="sm_$sm" -rdc=true
  compile "sm_$sm, checked" -arch="sm_$sm" -DMAM_HEAP_CHECKED=1
  compile "sm_$sm, recorded" -arch="sm_$sm" -DMAM_HEAP_RECORDED=1
  compile "sm_$sm, debugging" -arch="sm_$sm" -G
  registers_check "$sm"
done
for standard in c++14 c++17 c++20; do
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
replace() {
  how=$1
  shift
  compiled=$here/tests/tree/device_replace.cu
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
# replace_ptx FLAG...: the file as PTX.
replace_ptx() {
  "$NVCC" "$@" -O3 -I"$include" -Xcompiler -w -ptx -o "$work/replace.ptx" "$here/tests/tree/device_replace.cu" >"$work/log" 2>&1
}
# Nothing is left of CUDA's own allocator; with -rdc the file has all of it for files that know nothing of the header.
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
replace_weak() {
  for function in malloc free __cuda_syscall_aligned_malloc; do
    grep -Eq "^\.weak \.func (.*\) )?$function\(" "$work/replace.ptx" && continue
    echo "FAIL: -rdc: other files would not find $function"
    failed=1
  done
}
# What 15 more calls of malloc cost: a call each, and not a register that the first one has not cost.
replace_sites() {
  replace_ptx -arch=sm_90 -DSITES=1
  one=$(wc -l <"$work/replace.ptx")
  replace_ptx -arch=sm_90 -DSITES=16
  each=$((($(wc -l <"$work/replace.ptx") - one) / 15))
  verdict=ok
  [ "$one" -gt 0 ] && [ "$each" -gt 0 ] && [ "$each" -le 40 ] || verdict=FAIL failed=1
  echo "$verdict: each call of malloc is $each lines of PTX"
  for sites in 1 16; do
    "$NVCC" -arch=sm_90 -O3 -I"$include" -Xcompiler -w -DSITES="$sites" -Xptxas -v -cubin -o "$work/object.cubin" \
      "$here/tests/tree/device_replace.cu" 2>&1 |
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
replace ", c++14" -arch=sm_90 -std=c++14
replace ", relocatable device code" -arch=sm_90 -rdc=true
replace ", recorded" -arch=sm_90 -DMAM_HEAP_RECORDED=1
replace ", debugging" -arch=sm_90 -G -Xptxas -suppress-stack-size-warning
replace_complete "" -arch=sm_90
replace_complete ", debugging" -arch=sm_90 -G
replace_complete ", relocatable device code" -arch=sm_90 -rdc=true
replace_weak
replace_sites
compiled=$here/tests/tree/device_replace.cu
if [ -d "$(dirname "$(dirname "$(readlink -f "$(command -v "$NVCC")")")")/include/cccl" ]; then
  compile "malloc and new replaced, CUB's and thrust's headers after it" -arch=sm_90 -std=c++17 -DBETWEEN_OTHERS
fi
compiled=$work/none.cu
echo '#include <mam/device.cuh>' >"$compiled"
compile "no function at all" -arch=sm_90
exit $failed
