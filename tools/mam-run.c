/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs a program with GPU memory from libmam's pools; see mam-run(1).  Each option becomes an environment variable that
 * libmam_preload.so reads.  Then this process becomes the program, with that library in LD_PRELOAD.  The program's
 * environment is the user's, and these variables.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* As env(1) and other programs that run one. */
enum { STATUS_FAILED = 125, STATUS_NOT_RUN = 126, STATUS_NOT_FOUND = 127 };

static const char usage[] =
    "usage: mam-run [options] [--] program [argument ...]\n"
    "\n"
    "Runs the program with GPU memory from libmam's pools in place of the driver's.\n"
    "\n"
    "  -s, --summary              print at exit what was served\n"
    "  -m, --measure              the same, with the time saved, measured against calls of the driver\n"
    "  -o, --output FILE          print that to the end of FILE rather than on stderr\n"
    "  -r, --record FILE          write every allocation and free to FILE, for 'mam-bench replay FILE'\n"
    "      --limit BYTES|SHARE%   hold no more in the pool of a context; the driver serves the rest\n"
    "      --chunk BYTES          take at least so much from the driver at a time\n"
    "      --min BYTES            leave smaller allocations to the driver\n"
    "      --max BYTES            leave larger allocations to the driver\n"
    "      --own-pages BYTES      from this size on, blocks are the driver's, in 2 MiB pages of their own\n"
    "      --programs LIST        serve these programs only, by name\n"
    "      --skip-programs LIST   leave these programs alone\n"
    "      --skip-threads LIST    leave threads of these names alone\n"
    "      --skip-devices LIST    leave devices of these ordinals alone\n"
    "      --vmm                  map memory piece by piece, which can be given back (no legacy IPC)\n"
    "      --immediate            hand freed memory out again at once: for programs of one stream\n"
    "      --off                  serve nothing\n"
    "      --print                print the variables that would be set, and stop\n"
    "  -h, --help                 print this\n"
    "      --version              print the version\n"
    "\n"
    "BYTES may end in K, M or G.  A LIST is of names separated by commas.\n";

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)fputs("mam-run: ", stderr);
  (void)vfprintf(stderr, format, arguments);
  (void)fputc('\n', stderr);
  va_end(arguments);
  exit(STATUS_FAILED);
}

/* What was asked for is printed. */
static _Noreturn void done(void) {
  if (fflush(stdout) != 0 || ferror(stdout))
    fail("standard output: %s", strerror(errno));
  exit(EXIT_SUCCESS);
}

static void variable_set(const char *name, const char *value) {
  if (setenv(name, value, 1) != 0)
    fail("%s: %s", name, strerror(errno));
}

static char *__attribute__((format(printf, 1, 2))) text_new(const char *format, ...) {
  char *text;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0)
    fail("no memory");
  va_end(arguments);
  return text;
}

/* ---- Values of options: each function returns the variable's, or ends the program if the library would refuse it ----
 */

/* What the options have said, beside the variables. */
static const char *summary;            /* NULL: none */
static const char *output, *record;    /* files; NULL: none */
static size_t least_bytes, most_bytes; /* 0: not bounded */
static const char *least_text = "", *most_text = "";
static bool prints;

/* value: gets the unit in capitals.  otherwise: what else the option takes. */
static size_t bytes_or(const char *option, char *value, const char *otherwise) {
  static const char units[] = "KkMmGg";
  char *end;
  errno = 0;
  unsigned long long number = strtoull(value, &end, 10);
  const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
  if (*value < '0' || *value > '9' || (*end != '\0' && (unit == NULL || end[1] != '\0')))
    fail("%s %s: expected bytes, with K, M or G%s", option, value, otherwise);
  unsigned shift = unit != NULL ? 10 * ((unsigned)(unit - units) / 2 + 1) : 0;
  if (errno != 0 || number > SIZE_MAX >> shift)
    fail("%s %s: too large a number", option, value);
  if (unit != NULL)
    *end = units[(unit - units) / 2 * 2];
  return (size_t)number << shift;
}

static size_t bytes_of(const char *option, char *value) { return bytes_or(option, value, ""); }

static const char *bytes_value(const char *option, char *value) {
  (void)bytes_of(option, value);
  return value;
}

static const char *least_value(const char *option, char *value) {
  least_bytes = bytes_of(option, value);
  return least_text = value;
}

static const char *most_value(const char *option, char *value) {
  most_bytes = bytes_of(option, value);
  return most_text = value;
}

static const char *chunk_value(const char *option, char *value) {
  const size_t most = (size_t)16 << 40; /* what the largest devices have is less by far */
  size_t bytes = bytes_of(option, value);
  if (bytes == 0)
    fail("%s %s: a chunk has at least a byte", option, value);
  if (bytes > most)
    fail("%s %s: no device has so much memory", option, value);
  return value;
}

static const char *limit_value(const char *option, char *value) {
  const size_t least = 2 << 20;
  size_t digits = strspn(value, "0123456789");
  if (digits > 0 && strcmp(value + digits, "%") == 0) {
    unsigned long percent = strtoul(value, NULL, 10);
    if (percent < 1 || percent > 100)
      fail("%s %s: a percentage is from 1%% to 100%%", option, value);
    return value + strspn(value, "0");
  }
  if (bytes_or(option, value, ", or a percentage") < least)
    fail("%s %s: a pool needs 2 MiB", option, value);
  return value;
}

static const char *list_value(const char *option, char *value) {
  if (value[0] == ',' || value[strlen(value) - 1] == ',' || strstr(value, ",,") != NULL)
    fail("%s %s: expected a list, separated by commas", option, value);
  return value;
}

static const char *devices_value(const char *option, char *value) {
  enum { DIGITS = 3 }; /* of an ordinal */
  if (strspn(value, "0123456789,") != strlen(value))
    fail("%s %s: expected ordinals of devices, separated by commas", option, value);
  for (const char *ordinal = value; *ordinal != '\0'; ordinal += ordinal[0] == ',') {
    size_t digits = strspn(ordinal, "0123456789");
    if (digits > DIGITS)
      fail("%s %s: no machine has so many devices", option, value);
    ordinal += digits;
  }
  return list_value(option, value);
}

/* The program may change its folder. */
static const char *path_absolute(const char *path) {
  if (path[0] == '/')
    return path;
  char *folder = getcwd(NULL, 0);
  if (folder == NULL)
    fail("the current folder: %s", strerror(errno));
  char *absolute = text_new("%s/%s", strcmp(folder, "/") == 0 ? "" : folder, path);
  free(folder);
  return absolute;
}

static const char *output_value(const char *option, char *value) {
  (void)option;
  return output = path_absolute(value);
}

static const char *record_value(const char *option, char *value) {
  (void)option;
  return record = path_absolute(value);
}

/* ---- Options that are more than a variable ---- */

static void summary_ask(void) { summary = summary != NULL ? summary : "counts"; }
static void measure_ask(void) { summary = "measured"; }
static void print_ask(void) { prints = true; }

static void help_print(void) {
  (void)fputs(usage, stdout);
  done();
}

static void version_print(void) {
  (void)puts("mam-run " PACKAGE_VERSION);
  done();
}

/* ---- Options ---- */

static const struct option {
  const char *name;
  char letter;                                           /* its short form; 0: none */
  const char *variable;                                  /* NULL: none */
  const char *word;                                      /* the variable's value, if the option takes none */
  const char *(*value)(const char *option, char *value); /* NULL: it takes none */
  void (*ask)(void);                                     /* NULL: the variable is all */
} options[] = {
    {"--summary", 's', .ask = summary_ask},
    {"--measure", 'm', .ask = measure_ask},
    {"--output", 'o', "MAM_PRELOAD_OUTPUT", .value = output_value},
    {"--record", 'r', "MAM_RECORD", .value = record_value},
    {"--limit", 0, "MAM_LIMIT", .value = limit_value},
    {"--chunk", 0, "MAM_PRELOAD_CHUNK", .value = chunk_value},
    {"--min", 0, "MAM_PRELOAD_MIN", .value = least_value},
    {"--max", 0, "MAM_PRELOAD_MAX", .value = most_value},
    {"--own-pages", 0, "MAM_PRELOAD_OWN_PAGES", .value = bytes_value},
    {"--programs", 0, "MAM_PRELOAD_PROGRAMS", .value = list_value},
    {"--skip-programs", 0, "MAM_PRELOAD_SKIP_PROGRAMS", .value = list_value},
    {"--skip-threads", 0, "MAM_PRELOAD_SKIP_THREADS", .value = list_value},
    {"--skip-devices", 0, "MAM_PRELOAD_SKIP_DEVICES", .value = devices_value},
    {"--vmm", 0, "MAM_SOURCE", .word = "vmm"},
    {"--immediate", 0, "MAM_REUSE", .word = "immediate"},
    {"--off", 0, "MAM_PRELOAD", .word = "off"},
    {"--print", 0, .ask = print_ask},
    {"--help", 'h', .ask = help_print},
    {"--version", 0, .ask = version_print},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

/* typed: the option as the user wrote it. */
static void option_take(const struct option *option, const char *typed, char *value) {
  if (option->value != NULL && value == NULL)
    fail("%s needs a value", typed);
  if (option->value != NULL && *value == '\0')
    fail("%s needs a value that is not empty", typed);
  if (option->variable != NULL)
    variable_set(option->variable, option->value != NULL ? option->value(typed, value) : option->word);
  if (option->ask != NULL)
    option->ask();
}

/* Takes --name, --name=value, or --name and the next word.  Returns whether it took the next word. */
static bool long_take(char *word, char *next) {
  char *equals = strchr(word, '=');
  if (equals != NULL)
    *equals = '\0';
  for (size_t i = 0; i < OPTIONS; i++)
    if (strcmp(options[i].name, word) == 0) {
      if (options[i].value == NULL && equals != NULL)
        fail("%s takes no value", word);
      option_take(&options[i], word, equals != NULL ? equals + 1 : next);
      return options[i].value != NULL && equals == NULL;
    }
  fail("unknown option %s; see mam-run --help", word);
}

/* Takes a letter.  Returns its option. */
static const struct option *letter_take(char letter, char *value) {
  const char typed[] = {'-', letter, '\0'};
  for (size_t i = 0; i < OPTIONS; i++)
    if (letter != '\0' && options[i].letter == letter) {
      option_take(&options[i], typed, value);
      return &options[i];
    }
  fail("unknown option %s; see mam-run --help", typed);
}

/* Takes the letters of a word, of which the last may have a value: the rest of the word, or the next word.  Returns
 * whether it took the next word. */
static bool letters_take(char *letters, char *next) {
  do {
    bool is_last = letters[0] == '\0' || letters[1] == '\0';
    const struct option *option = letter_take(*letters, is_last ? next : letters + 1);
    if (option->value != NULL)
      return is_last;
  } while (*++letters != '\0');
  return false;
}

/* Takes all options.  Returns the words after them. */
static char **options_take(char **words) {
  for (; *words != NULL && (*words)[0] == '-'; words++) {
    char *word = *words, *next = words[1];
    if (strcmp(word, "--") == 0)
      return words + 1;
    words += word[1] == '-' ? long_take(word, next) : letters_take(word + 1, next);
  }
  return words;
}

/* ---- Files ---- */

/* O_NONBLOCK: whatever the path leads to, opening it does not wait. */
enum { OPEN_FLAGS = O_NONBLOCK | O_NOCTTY | O_CLOEXEC, OPEN_MODE = 0666 };

/* A FIFO is not opened: its reader would take this process's end of it for the end of the summary. */
static void output_check(void) {
  struct stat status;
  if (stat(output, &status) == 0 && S_ISFIFO(status.st_mode) && access(output, W_OK) == 0)
    return;
  int fd = open(output, O_WRONLY | O_CREAT | O_APPEND | OPEN_FLAGS, OPEN_MODE);
  if (fd < 0)
    fail("%s cannot be written: %s", output, strerror(errno));
  (void)close(fd);
}

/* With %p in its name the record is each process's own, and only its folder is looked at. */
static void record_folder_check(void) {
  const char *slash = strrchr(record, '/');
  char *folder = text_new("%.*s", slash > record ? (int)(slash - record) : 1, record);
  struct stat status;
  if (strstr(folder, "%p") == NULL &&
      (stat(folder, &status) != 0 || !S_ISDIR(status.st_mode) || access(folder, W_OK) != 0))
    fail("no file can be made in %s", folder);
  free(folder);
}

/* A record of a run before is emptied; nothing else is written over. */
static void record_begin(void) {
  static const char magic[] = "mamrec";
  char head[sizeof magic - 1];
  struct stat status;
  if (strstr(record, "%p") != NULL) {
    record_folder_check();
    return;
  }
  bool is_file = stat(record, &status) != 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
  int fd = is_file ? open(record, O_RDWR | O_CREAT | OPEN_FLAGS, OPEN_MODE) : -1;
  if (is_file && fd < 0)
    fail("%s cannot be written: %s", record, strerror(errno));
  ssize_t length = is_file ? pread(fd, head, sizeof head, 0) : -1;
  bool is_record = length == (ssize_t)sizeof head && memcmp(head, magic, sizeof head) == 0;
  bool emptied = is_record && ftruncate(fd, 0) == 0;
  int error = errno;
  if (fd >= 0)
    (void)close(fd); /* before a message: it may be descriptor 2 */
  if (is_record && !emptied)
    fail("%s cannot be written: %s", record, strerror(error));
  if (!is_record && length != 0)
    fail("%s is no record, so it is not written over", record);
}

/* ---- The library ---- */

/* The folder of this program's file. */
static char *own_folder(void) {
  char *self = realpath("/proc/self/exe", NULL);
  if (self == NULL) /* /proc is not mounted */
    self = realpath((const char *)getauxval(AT_EXECFN), NULL);
  if (self == NULL)
    return text_new(".");
  *strrchr(self, '/') = '\0';
  return self;
}

/* The one beside this program, in a build or as installed, comes before the one in the configured folder. */
static char *library_find(void) {
  char *here = own_folder(), *library = NULL;
  char *const paths[] = {text_new("%s/libmam_preload.so", here), text_new("%s/lib/.libs/libmam_preload.so", here),
                         text_new("%s/../lib/libmam_preload.so", here), text_new(LIBDIR "/libmam_preload.so")};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
    if (library == NULL && access(paths[i], R_OK) == 0)
      library = paths[i];
    else
      free(paths[i]);
  free(here);
  if (library == NULL)
    fail("libmam_preload.so is neither beside this program nor in " LIBDIR);
  if (strpbrk(library, " \t\n\v\f\r:") != NULL)
    fail("the dynamic linker takes no library whose path has a space or a colon: %s", library);
  return library;
}

/* ---- Whether a program takes the library ---- */

/* The file that execvp will run, if it can be told; else NULL. */
static char *program_find(const char *name) {
  const char *path = strchr(name, '/') != NULL ? "" : getenv("PATH");
  struct stat status;
  for (const char *folder = path; folder != NULL;) {
    size_t length = strcspn(folder, ":");
    char *file = length > 0 ? text_new("%.*s/%s", (int)length, folder, name) : text_new("%s", name);
    if (stat(file, &status) == 0 && S_ISREG(status.st_mode) && access(file, X_OK) == 0)
      return file;
    free(file);
    folder = folder[length] == ':' ? folder + length + 1 : NULL;
  }
  return NULL;
}

/* The interpreter that a script's first line names; else NULL. */
static char *interpreter_find(const char *program) {
  char line[256]; /* Linux reads no more */
  int fd = open(program, O_RDONLY | OPEN_FLAGS);
  ssize_t bytes = fd >= 0 ? pread(fd, line, sizeof line - 1, 0) : 0;
  if (fd >= 0)
    (void)close(fd);
  line[bytes > 0 ? bytes : 0] = '\0';
  if (strncmp(line, "#!", 2) != 0)
    return NULL;
  char *path = line + 2 + strspn(line + 2, " \t");
  path[strcspn(path, " \t\n")] = '\0';
  return *path != '\0' ? text_new("%s", path) : NULL;
}

/* The program that a file is run by: itself, or that of its interpreter, which may be a script too.  Linux follows five
 * at most. */
static char *program_of(char *file) {
  char *next;
  for (int i = 0; i < 5 && file != NULL && (next = interpreter_find(file)) != NULL; i++) {
    free(file);
    file = next;
  }
  return file;
}

/* Whether it is a file of the format ELF. */
static bool head_read(int fd, ElfW(Ehdr) * head) {
  return pread(fd, head, sizeof *head, 0) == (ssize_t)sizeof *head && memcmp(head->e_ident, ELFMAG, SELFMAG) == 0;
}

static bool same_machine(const ElfW(Ehdr) * one, const ElfW(Ehdr) * other) {
  return one->e_ident[EI_CLASS] == other->e_ident[EI_CLASS] && one->e_ident[EI_DATA] == other->e_ident[EI_DATA] &&
         one->e_machine == other->e_machine;
}

/* Whether a program asks for a dynamic linker. */
static bool is_dynamic(int fd, const ElfW(Ehdr) * head) {
  ElfW(Phdr) part;
  for (unsigned i = 0; i < head->e_phnum; i++)
    if (pread(fd, &part, sizeof part, (off_t)(head->e_phoff + (size_t)i * head->e_phentsize)) == (ssize_t)sizeof part &&
        part.p_type == PT_INTERP)
      return true;
  return false;
}

static const char *not_loaded_for_format(const char *program, const char *library) {
  ElfW(Ehdr) its, librarys;
  const char *why = NULL;
  int fd = open(program, O_RDONLY | OPEN_FLAGS), library_fd = open(library, O_RDONLY | OPEN_FLAGS);
  /* What is no such file is a script for a shell. */
  if (fd >= 0 && library_fd >= 0 && head_read(fd, &its) && head_read(library_fd, &librarys) &&
      (!same_machine(&its, &librarys) || !is_dynamic(fd, &its)))
    why = "is linked statically, or for another processor";
  if (fd >= 0)
    (void)close(fd);
  if (library_fd >= 0)
    (void)close(library_fd);
  return why;
}

static const char *not_loaded_for_privileges(const char *program) {
  struct stat status;
  if (stat(program, &status) == 0 && (((status.st_mode & S_ISUID) != 0 && status.st_uid != geteuid()) ||
                                      ((status.st_mode & S_ISGID) != 0 && status.st_gid != getegid())))
    return "has the privileges of another user (setuid)";
  if (geteuid() != 0 && getxattr(program, "security.capability", NULL, 0) > 0)
    return "has privileges of its own (setcap)";
  return NULL;
}

/* Why the dynamic linker will not load the library into the program, if that can be told; else NULL. */
static char *not_loaded(const char *name, const char *library) {
  char *file = program_find(name), *program = file != NULL ? program_of(text_new("%s", file)) : NULL, *text = NULL;
  const char *why = program != NULL ? not_loaded_for_privileges(program) : NULL;
  if (program != NULL && why == NULL)
    why = not_loaded_for_format(program, library);
  if (why != NULL)
    text = strcmp(file, program) == 0 ? text_new("it %s", why) : text_new("its interpreter %s %s", program, why);
  free(file);
  free(program);
  return text;
}

/* To the file of the summary, else to standard error.  The program starts whether the line is taken or not, so no
 * signal of a write ends this process. */
static void not_loaded_say(const char *name, const char *why) {
  const char *path = getenv("MAM_PRELOAD_OUTPUT");
  bool has_path = path != NULL && *path != '\0';
  int fd = has_path ? open(path, O_WRONLY | O_CREAT | O_APPEND | OPEN_FLAGS, OPEN_MODE) : STDERR_FILENO;
  void (*pipe_action)(int) = signal(SIGPIPE, SIG_IGN), (*size_action)(int) = signal(SIGXFSZ, SIG_IGN);
  (void)dprintf(fd, "mam-run: %s (process %ld): not loaded: %s\n", name, (long)getpid(), why);
  (void)signal(SIGPIPE, pipe_action);
  (void)signal(SIGXFSZ, size_action);
  if (has_path && fd >= 0)
    (void)close(fd);
}

/* ---- Running ---- */

static int text_compare(const void *one, const void *other) {
  return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Prints LD_PRELOAD, and the variables of the library in order. */
static _Noreturn void variables_print(void) {
  size_t count = 0;
  while (environ != NULL && environ[count] != NULL)
    count++;
  qsort(environ, count, sizeof *environ, text_compare);
  (void)printf("LD_PRELOAD=%s\n", getenv("LD_PRELOAD"));
  for (size_t i = 0; i < count; i++)
    if (strncmp(environ[i], "MAM_", strlen("MAM_")) == 0)
      (void)puts(environ[i]);
  done();
}

/* Whatever the options say together. */
static void options_check(void) {
  if (most_bytes > 0 && least_bytes > most_bytes)
    fail("--min %s --max %s: no size is left to serve", least_text, most_text);
  if (summary != NULL)
    variable_set("MAM_PRELOAD_SUMMARY", summary);
}

/* The files that a program is to write, and the number of this process, which the program will have.  A record of
 * before stays if there is no such program. */
static void files_begin(const char *name) {
  char *process = text_new("%ld", (long)getpid()), *program = program_find(name);
  if (output != NULL)
    output_check();
  if (record != NULL && program != NULL)
    record_begin();
  if (record != NULL)
    variable_set("MAM_RECORD_PROCESS", process);
  if (summary != NULL)
    variable_set("MAM_PRELOAD_PROCESS", process);
  free(process);
  free(program);
}

/* Last: the user's own interposers see the program's calls first. */
static void library_preload(const char *library) {
  const char *others = getenv("LD_PRELOAD");
  bool some = others != NULL && *others != '\0';
  char *preload = text_new("%s%s%s", some ? others : "", some ? ":" : "", library);
  variable_set("LD_PRELOAD", preload);
  free(preload);
}

int main(int argc, char **argv) {
  char **program = options_take(argv + (argc > 0));
  options_check();
  if (!prints && program[0] != NULL)
    files_begin(program[0]);
  char *library = library_find();
  library_preload(library);
  if (prints)
    variables_print();
  if (program[0] == NULL) {
    (void)fputs(usage, stderr);
    return STATUS_FAILED;
  }
  char *why = summary != NULL ? not_loaded(program[0], library) : NULL;
  free(library);
  if (why != NULL)
    not_loaded_say(program[0], why);
  free(why);
  (void)execvp(program[0], program);
  int error = errno;
  (void)fprintf(stderr, "mam-run: %s: %s\n", program[0], strerror(error));
  return error == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_RUN;
}
