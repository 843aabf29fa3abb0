/* Preloaded into every process of a storm: a wall clock that the storm sets, for them alone.
 *
 * CLOCK_FILE holds the times at which the clock was set, by the real clock, and by how much it was
 * wrong from then on. So not only the time of day is wrong, but also the times that the kernel
 * stamped on files, each as the wrong clock would have stamped it. What measures how long something
 * takes (CLOCK_MONOTONIC, a timeout) isn't touched by setting a clock, and isn't here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SETTINGS 4096 /* as clock.py has it */

struct setting {
    int64_t since; /* seconds of the real clock */
    int64_t wrong; /* seconds that are added from then on */
};
struct history {
    int64_t count; /* written last */
    struct setting settings[SETTINGS];
};

static int64_t wrong_at(int64_t real)
{
    static const struct history *history;
    if (!history) {
        int file = syscall(SYS_openat, AT_FDCWD, CLOCK_FILE, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            return 0;
        void *mapped = mmap(NULL, sizeof *history, PROT_READ, MAP_SHARED, file, 0);
        syscall(SYS_close, file);
        if (mapped == MAP_FAILED)
            return 0;
        history = mapped;
    }
    for (int64_t i = __atomic_load_n(&history->count, __ATOMIC_ACQUIRE); i-- > 0;)
        if (history->settings[i].since <= real)
            return history->settings[i].wrong;
    return 0;
}

static int is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

/* Declares `real`, the C library's own function of this name. */
#define REAL(name)                                                                                 \
    static __typeof__(name) *real;                                                                 \
    if (!real)                                                                                     \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* --- The time of day ------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && is_wall(clock))
        now->tv_sec += wrong_at(now->tv_sec);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    *now = (struct timeval){found.tv_sec, found.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* --- Waiting until a time of day --------------------------------------------------------------
 * The kernel knows the real one only. A condition variable may wait by the monotonic clock, whose
 * seconds are few. */

static struct timespec right(const struct timespec *end)
{
    struct timespec found, now;
    found = *end;
    if (found.tv_sec > 1000000000) {
        REAL(clock_gettime);
        real(CLOCK_REALTIME, &now);
        found.tv_sec -= wrong_at(now.tv_sec);
    }
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict end)
{
    REAL(pthread_cond_timedwait);
    struct timespec rightly = right(end);
    return real(condition, mutex, &rightly);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict end)
{
    REAL(sem_timedwait);
    struct timespec rightly = right(end);
    return real(semaphore, &rightly);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *end, struct timespec *left)
{
    REAL(clock_nanosleep);
    struct timespec rightly = flags & TIMER_ABSTIME && is_wall(clock) ? right(end) : *end;
    return real(clock, flags, &rightly, left);
}

/* --- The times of files ---------------------------------------------------------------------- */

static void stamp(struct timespec *time) { time->tv_sec += wrong_at(time->tv_sec); }

#define STAMPED(name, arguments, given)                                                            \
    int name arguments                                                                             \
    {                                                                                              \
        static int(*real) arguments;                                                               \
        if (!real)                                                                                 \
            real = (int(*) arguments)dlsym(RTLD_NEXT, #name);                                      \
        if (!real) { /* this C library doesn't have it */                                          \
            errno = ENOSYS;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        int failed = real given;                                                                   \
        if (!failed) {                                                                             \
            stamp(&found->st_atim);                                                                \
            stamp(&found->st_mtim);                                                                \
            stamp(&found->st_ctim);                                                                \
        }                                                                                          \
        return failed;                                                                             \
    }
#define STAMPED_BOTH(suffix, kind)                                                                 \
    STAMPED(stat##suffix, (const char *restrict path, kind *restrict found), (path, found))  \
    STAMPED(lstat##suffix, (const char *restrict path, kind *restrict found), (path, found)) \
    STAMPED(fstat##suffix, (int file, kind *found), (file, found))                           \
    STAMPED(fstatat##suffix, \
            (int folder, const char *restrict path, kind *restrict found, int flags),              \
            (folder, path, found, flags))                                                          \
    STAMPED(__xstat##suffix, (int v, const char *path, kind *found), (v, path, found))       \
    STAMPED(__lxstat##suffix, (int v, const char *path, kind *found), (v, path, found))      \
    STAMPED(__fxstat##suffix, (int v, int file, kind *found), (v, file, found))              \
    STAMPED(__fxstatat##suffix, \
            (int v, int folder, const char *path, kind *found, int flags),                         \
            (v, folder, path, found, flags))
STAMPED_BOTH(, struct stat)
STAMPED_BOTH(64, struct stat64)

int statx(int folder, const char *restrict path, int flags, unsigned mask,
          struct statx *restrict found)
{
    REAL(statx);
    int failed = real(folder, path, flags, mask, found);
    if (!failed) {
        found->stx_atime.tv_sec += wrong_at(found->stx_atime.tv_sec);
        found->stx_btime.tv_sec += wrong_at(found->stx_btime.tv_sec);
        found->stx_ctime.tv_sec += wrong_at(found->stx_ctime.tv_sec);
        found->stx_mtime.tv_sec += wrong_at(found->stx_mtime.tv_sec);
    }
    return failed;
}
