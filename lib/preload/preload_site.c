/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where in the program an allocation is.  A program of the CUDA runtime calls cudaMalloc, and the runtime calls the
 * hook: all its allocations return to one place.  So the stack is walked out of the runtime.
 *
 *   the program --> [cudaMalloc<T> -->] cudaMalloc --> inside the runtime --> the hook
 *   ^ the site      '--------- code of a runtime: struct range ---------'
 *
 * Code of a runtime is libcudart; what nvcc puts into a program, which its symbols show; and the functions of
 * cuda_runtime_api.h that a compiler has not inlined.
 *
 * The unwinder of the compiler knows each frame, and takes half a microsecond.  What it finds is kept as a rule for
 * the frame's address: how to come from there to the caller's.  A rule is right for each call through that address:
 *
 *   - With a frame pointer: it points into the frame, to the caller's one and the return address.
 *   - Without one: the frame has a fixed size there.  The compiler's tables can say where a frame ends by the stack
 *     pointer or by a register that the function keeps for it, which is the frame pointer.  Where that does not point
 *     into the frame, it is the stack pointer.
 *
 * A frame that has neither is left to the unwinder each time.
 */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include "base/cancel.h"
#include "preload/preload.h"

/* ---- Code of runtimes ---- */

struct range {
  uintptr_t low, high;
};

struct ranges {
  struct range *all;
  size_t count;
};

static struct {
  pthread_mutex_t lock;   /* a leaf, but for that of the dynamic linker's list of modules */
  struct ranges runtimes; /* code of a runtime */
  struct ranges modules;  /* code whose symbols were looked at */
  unsigned long long unloads;
} sites = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool ranges_have(const struct ranges *ranges, uintptr_t address) {
  for (size_t i = 0; i < ranges->count; i++)
    if (address - ranges->all[i].low < ranges->all[i].high - ranges->all[i].low)
      return true;
  return false;
}

/* Without host memory the range is not known. */
static void ranges_add(struct ranges *ranges, uintptr_t low, uintptr_t high) {
  struct range *all = realloc(ranges->all, (ranges->count + 1) * sizeof *all);
  if (all == NULL)
    return;
  ranges->all = all;
  all[ranges->count++] = (struct range){low, high};
}

/* Whether a function of that name is of a runtime: one of its own; cudaMalloc, cudaMallocPitch and so on; or, in the
 * names of C++, cudaMalloc<T>. */
static bool is_runtime(const char *name) {
  static const char own[] = "libcudart_static_", public[] = "cudaMalloc";
  if (strncmp(name, "_Z", 2) == 0) {
    name += name[2] == 'L' ? 3 : 2;
    name += strspn(name, "0123456789");
  }
  return strncmp(name, own, sizeof own - 1) == 0 || strncmp(name, public, sizeof public - 1) == 0;
}

/* Finds the functions of a runtime that a module has in itself.  They are in several places, with the program's between
 * them. */
static void symbols_look(const ElfW(Sym) * symbols, size_t count, const char *texts, size_t texts_bytes,
                         uintptr_t base) {
  for (size_t i = 0; i < count; i++) {
    const ElfW(Sym) *symbol = &symbols[i];
    uintptr_t low = base + symbol->st_value;
    if ((symbol->st_info & 15) == STT_FUNC && symbol->st_shndx != SHN_UNDEF && symbol->st_name < texts_bytes &&
        is_runtime(texts + symbol->st_name))
      ranges_add(&sites.runtimes, low, low + symbol->st_size);
  }
}

/* Finds the symbols in a module's file, which is bytes long. */
static void file_look(const unsigned char *file, size_t bytes, uintptr_t base) {
  const ElfW(Ehdr) *head = (const void *)file;
  if (bytes < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_shoff % sizeof head->e_shoff != 0 || head->e_shoff > bytes ||
      (bytes - head->e_shoff) / sizeof(ElfW(Shdr)) < head->e_shnum)
    return;
  const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
  for (unsigned i = 0; i < head->e_shnum; i++) {
    const ElfW(Shdr) *symbols = &sections[i];
    if (symbols->sh_type != SHT_SYMTAB || symbols->sh_link >= head->e_shnum)
      continue;
    const ElfW(Shdr) *texts = &sections[symbols->sh_link];
    if (symbols->sh_offset <= bytes && symbols->sh_size <= bytes - symbols->sh_offset && texts->sh_offset <= bytes &&
        texts->sh_size <= bytes - texts->sh_offset && texts->sh_size > 0 &&
        symbols->sh_offset % sizeof symbols->sh_offset == 0 && file[texts->sh_offset + texts->sh_size - 1] == '\0')
      symbols_look((const void *)(file + symbols->sh_offset), symbols->sh_size / sizeof(ElfW(Sym)),
                   (const char *)file + texts->sh_offset, texts->sh_size, base);
  }
}

static void module_look(const struct dl_phdr_info *module) {
  struct stat status;
  int fd = open(module->dlpi_name[0] != '\0' ? module->dlpi_name : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  if (fstat(fd, &status) == 0 && status.st_size > 0) {
    void *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file != MAP_FAILED) {
      file_look(file, (size_t)status.st_size, module->dlpi_addr);
      (void)munmap(file, (size_t)status.st_size);
    }
  }
  (void)close(fd);
}

static int module_visit(struct dl_phdr_info *module, size_t size, void *data) {
  uintptr_t address = *(const uintptr_t *)data;
  const char *slash = strrchr(module->dlpi_name, '/'), *name = slash != NULL ? slash + 1 : module->dlpi_name;
  (void)size;
  for (int i = 0; i < module->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &module->dlpi_phdr[i];
    uintptr_t low = module->dlpi_addr + segment->p_vaddr, high = low + segment->p_memsz;
    if (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0 || address - low >= high - low)
      continue;
    ranges_add(&sites.modules, low, high);
    if (strncmp(name, "libcudart", strlen("libcudart")) == 0)
      ranges_add(&sites.runtimes, low, high);
    else
      module_look(module);
    return 1;
  }
  return 0;
}

static bool in_runtime_locked(uintptr_t address) {
  if (!ranges_have(&sites.modules, address))
    (void)dl_iterate_phdr(module_visit, &address);
  return ranges_have(&sites.runtimes, address);
}

/* ---- Rules ---- */

enum { RULES = 1024, RULE_BITS = 16, WORD = sizeof(uintptr_t) };

/* A rule: an address of code, and in the low bits what to do there. */
enum { RULE_SITE, RULE_FRAME_POINTER, RULE_WORDS /* and more: the frame has so many words, and 1 more */ };

/* The frames of a runtime are not larger, all together. */
enum { STACK_BYTES = 8192, FRAMES_MOST = 24 };

static _Atomic uint64_t rules[RULES]; /* relaxed: each is whole in itself */

static _Atomic uint64_t *rule_of(uintptr_t address) { return &rules[(uint64_t)address * 0x9e3779b97f4a7c15u >> 54]; }

static void rule_put(uintptr_t address, uintptr_t rule) {
  if (rule >> RULE_BITS == 0 && (uint64_t)address << RULE_BITS >> RULE_BITS == address)
    atomic_store_explicit(rule_of(address), (uint64_t)address << RULE_BITS | rule, memory_order_relaxed);
}

__attribute__((no_sanitize("address"))) static uintptr_t word_at(uintptr_t address) {
  return *(const uintptr_t *)address;
}

/* ---- The unwinder ---- */

#if defined(__x86_64__)
enum { FRAME_POINTER = 6 };
#elif defined(__aarch64__)
enum { FRAME_POINTER = 29 };
#else
#error "the number of the frame pointer"
#endif

/* When the frame's function goes on: the address, and the registers. */
struct frame {
  uintptr_t address, stack, pointer;
};

struct walk {
  uintptr_t begin; /* frames before this address are those of this library */
  unsigned count;
  struct frame frames[FRAMES_MOST];
  bool out; /* the last one is outside of runtimes */
};

static _Unwind_Reason_Code frame_take(struct _Unwind_Context *context, void *data) {
  struct walk *walk = data;
  uintptr_t address = _Unwind_GetIP(context);
  if (walk->count == 0 && address != walk->begin)
    return _URC_NO_REASON;
  walk->frames[walk->count++] = (struct frame){address, _Unwind_GetCFA(context), _Unwind_GetGR(context, FRAME_POINTER)};
  walk->out = !in_runtime_locked(address);
  return walk->out || walk->count == FRAMES_MOST ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static void rule_learn(const struct frame *frame) {
  const struct frame *caller = frame + 1;
  bool points = frame->pointer >= frame->stack && frame->pointer < caller->stack;
  if (points && caller->stack - frame->pointer >= 2 * WORD && word_at(frame->pointer + WORD) == caller->address)
    rule_put(frame->address, RULE_FRAME_POINTER);
  else if (!points && word_at(caller->stack - WORD) == caller->address)
    rule_put(frame->address, RULE_WORDS + (caller->stack - frame->stack) / WORD - 1);
}

static int unloads_read(struct dl_phdr_info *module, size_t size, void *data) {
  (void)size;
  *(unsigned long long *)data = module->dlpi_subs;
  return 1;
}

/* Another module may have come to the addresses of one that was unloaded. */
static void modules_look_locked(void) {
  unsigned long long unloads = 0;
  (void)dl_iterate_phdr(unloads_read, &unloads);
  if (unloads == sites.unloads)
    return;
  sites.unloads = unloads;
  sites.runtimes.count = sites.modules.count = 0;
  for (unsigned i = 0; i < RULES; i++)
    atomic_store_explicit(&rules[i], 0, memory_order_relaxed);
}

static __attribute__((noinline)) const void *site_unwind(const void *site) {
  NOT_CANCELLED; /* a file may be opened */
  struct walk walk = {.begin = (uintptr_t)site};
  pthread_mutex_lock(&sites.lock);
  modules_look_locked();
  (void)_Unwind_Backtrace(frame_take, &walk);
  for (unsigned i = 0; i + 1 < walk.count; i++)
    rule_learn(&walk.frames[i]);
  if (walk.out)
    rule_put(walk.frames[walk.count - 1].address, RULE_SITE);
  pthread_mutex_unlock(&sites.lock);
  return walk.out ? (const void *)walk.frames[walk.count - 1].address : site; // NOLINT(performance-no-int-to-ptr)
}

const void *preload_site_find(const void *site, const void *frame) {
  uintptr_t address = (uintptr_t)site, pointer = word_at((uintptr_t)frame);
  uintptr_t stack = (uintptr_t)frame + 2 * WORD, most = stack + STACK_BYTES;
  for (;;) {
    uint64_t rule = atomic_load_explicit(rule_of(address), memory_order_relaxed);
    if (rule >> RULE_BITS != address)
      return site_unwind(site);
    rule &= (1 << RULE_BITS) - 1;
    if (rule == RULE_SITE)
      return (const void *)address; // NOLINT(performance-no-int-to-ptr)
    uintptr_t caller = rule == RULE_FRAME_POINTER ? pointer + 2 * WORD : stack + (rule - RULE_WORDS + 1) * WORD;
    if (caller <= stack || caller > most) /* a function without a frame pointer has used the register */
      return site_unwind(site);
    pointer = rule == RULE_FRAME_POINTER ? word_at(pointer) : 0;
    address = word_at(caller - WORD);
    stack = caller;
  }
}

void preload_site_forked(void) { (void)pthread_mutex_init(&sites.lock, NULL); }
