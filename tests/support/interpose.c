/* Preloaded (LD_PRELOAD): counts the calls of this process that change files, and at the n-th of them
 * kills the process, or from then on lets every write fail as on a full disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FULL };

static int mode = OFF, target = 0, calls = 0;
static char trace[1 << 20];
static size_t used = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void interpose_arm(int new_mode, int n) {
  mode = OFF;
  calls = 0;
  used = 0;
  target = n;
  mode = new_mode;
}

/* Ends counting. Returns one line per call: its name and its path. */
const char *interpose_disarm(void) {
  mode = OFF;
  trace[used] = 0;
  return trace;
}

static void path_of(int fd, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
}

static int is_file(int fd) {
  struct stat found;
  return fd >= 0 && fstat(fd, &found) == 0 && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
}

/* Whether this call is the one, or for a full disk one from it on. Only writes count for a full disk. */
static int is_hit(const char *name, const char *path, int is_write) {
  if (mode == OFF || (mode == FULL && !is_write)) return 0;
  pthread_mutex_lock(&lock);
  int n = ++calls;
  if (used + 4096 < sizeof trace) used += snprintf(trace + used, 4000, "%s %s\n", name, path);
  pthread_mutex_unlock(&lock);
  return mode == KILL ? n == target : mode == FULL ? n >= target : 0;
}

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define ON_FD(name, fd, is_write) char path[1024]; \
  int hit = 0; \
  if (mode != OFF && is_file(fd)) { path_of(fd, path, sizeof path); hit = is_hit(#name, path, is_write); }

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  ON_FD(write, fd, 1)
  if (hit && mode == FULL) { errno = ENOSPC; return -1; }
  if (hit) { real(fd, data, size / 2); die(); }
  return real(fd, data, size);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  REAL(fwrite);
  ON_FD(fwrite, fileno(file), 1)
  if (hit && mode == FULL) { errno = ENOSPC; return 0; }
  if (hit) { real(data, 1, size * count / 2, file); fflush(file); die(); }
  return real(data, size, count, file);
}

int fsync(int fd) {
  REAL(fsync);
  ON_FD(fsync, fd, 0)
  if (hit) die();
  return real(fd);
}

int close(int fd) {
  REAL(close);
  ON_FD(close, fd, 0)
  if (hit) die();
  return real(fd);
}

int fclose(FILE *file) {
  REAL(fclose);
  ON_FD(fclose, fileno(file), 0)
  if (hit) die();
  return real(file);
}

#define ON_PATH(name) int name(const char *path) { \
  REAL(name); \
  if (is_hit(#name, path, 0)) die(); \
  return real(path); }
ON_PATH(unlink)
ON_PATH(rmdir)

int mkdir(const char *path, mode_t access) {
  REAL(mkdir);
  if (is_hit("mkdir", path, 0)) die();
  return real(path, access);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  if (is_hit("rename", to, 0)) die();
  return real(from, to);
}
