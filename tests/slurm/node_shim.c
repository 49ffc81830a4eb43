// A library in /etc/ld.so.preload of one node, which makes that node behave as a broken one does. Each defect is a macro:
//   FAIL_BELOW="/path" FAIL_ERRNO=n   calls for files below that folder fail: OPEN_FAILS, WRITE_FAILS, LOCK_FAILS
//     MAP_FAILS                       shared maps of files
//     WRITE_SPEED=n                   no failure: writing takes 1/n seconds for a byte; FAIL_ERRNO is not needed
//   CLOCK_AHEAD=n                     the clock is n seconds ahead
//   CPU_CLOCK=n                       a thread needs n times its processor time: a slow core
//   PROGRAM="words"                   in programs with these words on their command line only:
//     END_BY=n END_AFTER=ms           a signal ends it so many milliseconds after it began
//     NEVER_BEGINS                    it hangs before its first instruction
//     CONNECTIONS=n                   it opens so many connections; the next one never opens
//   NOFILE=n                          it may open so many files
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef PROGRAM
static int is_program(void) {
  static int known = -1;
  if (known >= 0) return known;
  char line[8192];
  int file = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
  ssize_t length = file < 0 ? 0 : syscall(SYS_read, file, line, sizeof line - 1);
  if (file >= 0) syscall(SYS_close, file);
  if (length < 0) length = 0;
  for (ssize_t at = 0; at < length; at++)
    if (!line[at]) line[at] = ' ';
  line[length] = 0;
  return known = strstr(line, PROGRAM) != NULL && strstr(line, "bash") == NULL &&
                 strstr(line, "torch.distributed.run") == NULL;
}
#endif

#ifdef FAIL_BELOW
static int is_below(const char *path) {
  return path && strncmp(path, FAIL_BELOW, strlen(FAIL_BELOW)) == 0;
}
static int descriptor_is_below(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}
#endif

#ifdef OPEN_FAILS
#define OPEN(name)                                            \
  int name(const char *path, int flags, ...) {                \
    va_list list;                                             \
    va_start(list, flags);                                    \
    int mode = va_arg(list, int);                             \
    va_end(list);                                             \
    if (is_below(path)) return errno = FAIL_ERRNO, -1;        \
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);  \
  }
OPEN(open)
OPEN(open64)
#endif

#ifdef WRITE_FAILS
ssize_t write(int descriptor, const void *content, size_t length) {
  if (length && descriptor > 2 && descriptor_is_below(descriptor)) return errno = FAIL_ERRNO, -1;
  return syscall(SYS_write, descriptor, content, length);
}
#endif

#ifdef WRITE_SPEED
ssize_t write(int descriptor, const void *content, size_t length) {
  if (descriptor > 2 && descriptor_is_below(descriptor)) {
    struct timespec wait = {length / WRITE_SPEED, length % WRITE_SPEED * 1000000000LL / WRITE_SPEED};
    nanosleep(&wait, NULL);
  }
  return syscall(SYS_write, descriptor, content, length);
}
#endif

#ifdef MAP_FAILS
#define MMAP(name)                                                                             \
  void *name(void *start, size_t length, int access, int flags, int descriptor, off_t offset) { \
    if (descriptor >= 0 && (flags & MAP_SHARED) && descriptor_is_below(descriptor))            \
      return errno = FAIL_ERRNO, MAP_FAILED;                                                   \
    return (void *)syscall(SYS_mmap, start, length, access, flags, descriptor, offset);        \
  }
MMAP(mmap)
MMAP(mmap64)
#endif

#ifdef LOCK_FAILS
#define FCNTL(name)                                                                       \
  int name(int descriptor, int command, ...) {                                            \
    va_list list;                                                                         \
    va_start(list, command);                                                              \
    void *argument = va_arg(list, void *);                                                \
    va_end(list);                                                                         \
    if ((command == F_SETLK || command == F_SETLKW) && descriptor_is_below(descriptor))   \
      return errno = FAIL_ERRNO, -1;                                                      \
    return syscall(SYS_fcntl, descriptor, command, argument);                             \
  }
FCNTL(fcntl)
FCNTL(fcntl64)
#endif

#if defined CLOCK_AHEAD || defined CPU_CLOCK
int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
#ifdef CLOCK_AHEAD
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += CLOCK_AHEAD;
#endif
#ifdef CPU_CLOCK
  if (clock == CLOCK_THREAD_CPUTIME_ID) {
    long long nanoseconds = CPU_CLOCK * (now->tv_sec * 1000000000LL + now->tv_nsec);
    now->tv_sec = nanoseconds / 1000000000LL;
    now->tv_nsec = nanoseconds % 1000000000LL;
  }
#endif
  return result;
}
#endif

#ifdef CONNECTIONS
int connect(int socket, const struct sockaddr *address, socklen_t length) {
  static int opened = 0;
  if (is_program() && address->sa_family == AF_INET && __sync_add_and_fetch(&opened, 1) > CONNECTIONS)
    for (;;) pause();
  return syscall(SYS_connect, socket, address, length);
}
#endif

__attribute__((constructor)) static void begin(void) {
#ifdef NOFILE
  struct rlimit limit = {NOFILE, NOFILE};
  setrlimit(RLIMIT_NOFILE, &limit);
#endif
#ifdef NEVER_BEGINS
  if (is_program())
    for (;;) pause();
#endif
#ifdef END_BY
  if (is_program()) {
    pid_t process = getpid();
    if (END_AFTER == 0) kill(process, END_BY);
    if (fork() == 0) {
      close(0), close(1), close(2);
      struct timespec wait = {END_AFTER / 1000, END_AFTER % 1000 * 1000000L};
      nanosleep(&wait, NULL);
      kill(process, END_BY);
      _exit(0);
    }
  }
#endif
}
