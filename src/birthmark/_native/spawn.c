/* birthmark._native.spawn: start a program from a native thread that lives as long as the process.
 *
 * Why native, and why a thread of its own:
 *   - the parent-death signal follows the *thread* that forked, so that thread must never end;
 *   - between fork and exec no Python may run in a threaded parent, and the cost must not grow with its memory: vfork;
 *   - a Python thread behind a queue waits for the GIL as often as it is asked; the caller keeps the GIL here instead.
 *
 * What the thread may not do: touch Python, take the GIL, or run one of the host's signal handlers (it blocks all signals).
 *
 * Who owns what: a request is one heap block with copies of everything, so that a caller who stops waiting (^C) may leave.
 * It then belongs to the thread, which ends and reaps the child that nobody asked for any more.
 */
#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#if !defined(SYS_futex) && defined(SYS_futex_time64)
#define SYS_futex SYS_futex_time64
#endif
#define MARK_CLOEXEC 4U /* CLOSE_RANGE_CLOEXEC: Linux 5.11 */

/* On 32-bit systems the plain calls take 16-bit ids. glibc's own functions are out of the question in a child made by
 * clone(): they would signal the threads of the parent, of which they hold a list. */
#ifdef SYS_setresuid32
#define SET_UID SYS_setresuid32
#define SET_GID SYS_setresgid32
#define SET_GROUPS SYS_setgroups32
#else
#define SET_UID SYS_setresuid
#define SET_GID SYS_setresgid
#define SET_GROUPS SYS_setgroups
#endif

enum {
    HELD_WAIT_MS = 50,      /* the caller keeps the GIL so long ... */
    RELEASED_WAIT_MS = 50,  /* ... then looks for signals this often, without it */
    MOST_THREADS = 8,       /* a second one is started only while the first is stuck in an exec */
    STACK_BYTES = 64 * 1024,
    SIGSET_BYTES = _NSIG / 8, /* the kernel's, not the C library's */
    KEEP_HARD = -2,
};

enum step { NONE, SPAWN, LIMITS, SESSION, CREDENTIALS, CWD, DESCRIPTORS, PARENT, EXEC };
static const char *const step_names[] = {
    "none", "spawn", "limits", "session", "credentials", "cwd", "descriptors", "parent", "exec",
};

enum session { INHERIT, NEW_GROUP, NEW_SESSION };
enum state { QUEUED, RUNNING, BORN, DONE };

struct pair { int ours, theirs; };
struct limit { int resource; uint64_t soft, hard; int keep_hard; };

/* Written by the child, read by the thread, in memory that is shared also when the child got a copy of ours. */
struct report { volatile int error, step; volatile pid_t pid; };

struct request {
    struct request *next;
    /* 1 until the child has exec'ed or ended, then 0: the kernel writes it, as it does for a thread that ends, and wakes
     * who waits for it. So the caller need not wait until our thread has been given a processor again. */
    uint32_t pending;
    /* Under `lock`: */
    enum state state;
    int abandoned; /* the caller has left without the answer */
    int taken;     /* the caller has left with the child; what remains of the request is the thread's */
    /* What is asked: */
    char *path, **argv, **env, *cwd;
    struct pair *fds; /* ascending in `theirs`, no number twice */
    struct limit *limits;
    gid_t *groups;
    Py_ssize_t n_fds, n_limits, n_groups; /* n_groups -1: leave them alone */
    int death, session, umask, sets_uid, sets_gid;
    uid_t uid;
    gid_t gid;
    pid_t parent;
    /* What came of it: */
    struct report *report;
    pid_t pid;
    int pidfd, error;
    enum step step;
};

struct worker { char *stack_top; struct report *report; };

/* One per process, not per interpreter. Void in a forked child: its threads are gone and its locks are as they were. */
static struct {
    pid_t owner;
    int threads;
    struct request *first, **last;
} spawner;
static pthread_mutex_t lock;
/* Not in the request, and said without the lock: whoever is woken does not run into it, and may free the request. */
static pthread_cond_t wanted, finished;

/* ---- in the child: between clone and exec, in the parent's memory; system calls only -------------------------------- */

__attribute__((noreturn)) static void give_up(struct request *r, enum step step) {
    r->report->error = errno;
    r->report->step = step;
    _exit(127);
}

/* Handlers must be gone before the mask is lifted (they would run in the parent's memory), and what the parent ignores
 * must not be ignored by the child. By system call: the C library hides two signals, and a zeroed sigaction is SIG_DFL
 * in every layout. */
static void default_signals(void) {
    static const unsigned char zeros[256] __attribute__((aligned(16)));
    for (int number = 1; number < _NSIG; number++) syscall(SYS_rt_sigaction, number, zeros, NULL, SIGSET_BYTES);
}

static void close_on_exec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

struct entry { uint64_t inode; int64_t offset; unsigned short length; unsigned char type; char name[]; };

/* For kernels without CLOSE_RANGE_CLOEXEC, and seccomp filters that do not know the call. */
static void close_listed(unsigned first, unsigned last) {
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        char buffer[4096] __attribute__((aligned(16)));
        long got;
        while ((got = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0)
            for (long at = 0; at < got;) {
                struct entry *entry = (struct entry *)(buffer + at);
                unsigned fd = 0;
                const char *digit = entry->name;
                for (; *digit >= '0' && *digit <= '9'; digit++) fd = fd * 10 + (unsigned)(*digit - '0');
                if (digit != entry->name && fd >= first && fd <= last) close_on_exec((int)fd);
                at += entry->length;
            }
        close(folder);
        if (got == 0) return;
    }
    long most = sysconf(_SC_OPEN_MAX);
    for (unsigned fd = first; fd <= last && (most < 0 || fd < (unsigned long)most) && fd <= INT_MAX; fd++)
        close_on_exec((int)fd);
}

static void close_all_on_exec(unsigned first, unsigned last) {
    if (syscall(SYS_close_range, first, last, MARK_CLOEXEC) != 0) close_listed(first, last);
}

static int is_target(const struct request *r, int fd) {
    for (Py_ssize_t i = 0; i < r->n_fds; i++)
        if (r->fds[i].theirs == fd) return 1;
    return 0;
}

static int arrange_descriptors(struct request *r) {
    /* A source that stands where another shall go is moved above all targets first: that is what makes swaps work. */
    int above = r->n_fds ? r->fds[r->n_fds - 1].theirs + 1 : 0;
    for (Py_ssize_t i = 0; i < r->n_fds; i++) {
        struct pair *fd = &r->fds[i];
        if (fd->ours == fd->theirs || !is_target(r, fd->ours)) continue;
        if ((fd->ours = fcntl(fd->ours, F_DUPFD_CLOEXEC, above)) < 0) return -1;
    }
    for (Py_ssize_t i = 0; i < r->n_fds; i++) {
        struct pair *fd = &r->fds[i];
        if (fd->ours != fd->theirs) {
            if (dup2(fd->ours, fd->theirs) < 0) return -1;
        } else { /* dup2 onto itself would leave close-on-exec as it is */
            int flags = fcntl(fd->ours, F_GETFD);
            if (flags < 0 || fcntl(fd->ours, F_SETFD, flags & ~FD_CLOEXEC) < 0) return -1;
        }
    }
    unsigned from = 0;
    for (Py_ssize_t i = 0; i < r->n_fds; i++) {
        unsigned target = (unsigned)r->fds[i].theirs;
        if (target > from) close_all_on_exec(from, target - 1);
        from = target + 1;
    }
    close_all_on_exec(from, UINT_MAX);
    return 0;
}

static int set_limits(const struct request *r) {
    for (Py_ssize_t i = 0; i < r->n_limits; i++) {
        const struct limit *limit = &r->limits[i];
        struct { uint64_t soft, hard; } value = {limit->soft, limit->hard}, now;
        if (limit->keep_hard) {
            if (syscall(SYS_prlimit64, 0, limit->resource, NULL, &now) != 0) continue;
            value.hard = now.hard;
        }
        if (syscall(SYS_prlimit64, 0, limit->resource, &value, NULL) != 0 && !limit->keep_hard) return -1;
    }
    return 0;
}

static int changes_credentials(const struct request *r) { return r->sets_uid || r->sets_gid || r->n_groups >= 0; }

static int set_credentials(const struct request *r) {
    if (r->n_groups >= 0 && syscall(SET_GROUPS, (size_t)r->n_groups, r->groups) != 0) return -1;
    if (r->sets_gid && syscall(SET_GID, r->gid, r->gid, r->gid) != 0) return -1;
    if (r->sets_uid && syscall(SET_UID, r->uid, r->uid, r->uid) != 0) return -1;
    return 0;
}

static int child(void *argument) {
    struct request *r = argument;
    /* In a pid namespace of its own it has another number for itself than we have for it, and no parent to see. */
    if (getppid() == r->parent) r->report->pid = getpid();
    default_signals();
    if (r->session == NEW_SESSION && setsid() < 0) give_up(r, SESSION);
    if (r->session == NEW_GROUP && setpgid(0, 0) != 0) give_up(r, SESSION);
    /* Before the limits: a low RLIMIT_NOFILE forbids new high numbers, but leaves those that are there. */
    if (arrange_descriptors(r) != 0) give_up(r, DESCRIPTORS);
    if (set_limits(r) != 0) give_up(r, LIMITS);
    if (r->umask >= 0) umask((mode_t)r->umask);
    if (set_credentials(r) != 0) give_up(r, CREDENTIALS);
    if (r->cwd && chdir(r->cwd) != 0) give_up(r, CWD);
    if (r->death) {
        /* After the credentials, since the kernel disarms it when they change. Then look: a parent that died before
         * the arming will never send it. Compared with the recorded pid, since not every orphan falls to pid 1. */
        if (prctl(PR_SET_PDEATHSIG, r->death) != 0) give_up(r, PARENT);
        if (getppid() != r->parent) {
            errno = ESRCH;
            give_up(r, PARENT);
        }
    }
    static const unsigned char empty[256] __attribute__((aligned(16)));
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, empty, NULL, SIGSET_BYTES);
    execve(r->path, r->argv, r->env);
    give_up(r, EXEC);
}

/* ---- in the thread ------------------------------------------------------------------------------------------------- */

static void release(struct request *r) {
    free(r->path);
    free(r->argv);
    free(r->env);
    free(r->cwd);
    free(r->fds);
    free(r->limits);
    free(r->groups);
    free(r);
}

static void reap(pid_t pid) {
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* Kill a child of ours that was reported to nobody. The number is safe: it has not been reaped. */
static void kill_unclaimed(pid_t pid, int pidfd) {
    if (pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) == 0) return;
    if (pid > 0) kill(pid, SIGKILL);
}

static void end_unclaimed(pid_t pid, int pidfd) {
    kill_unclaimed(pid, pidfd);
    reap(pid);
    if (pidfd >= 0) close(pidfd);
}

static void give_birth(struct request *r, struct worker *w) {
    static const unsigned char all[SIGSET_BYTES] = {[0 ... SIGSET_BYTES - 1] = 0xff};
    unsigned char before[SIGSET_BYTES];
    /* With other credentials no memory may be shared: the new user could trace the child and write into ours. The price
     * is a copy of the page tables. CLONE_VFORK makes us wait for the exec in both cases. */
    int flags = CLONE_VFORK | SIGCHLD | (changes_credentials(r) ? 0 : CLONE_VM | CLONE_CHILD_CLEARTID);

    /* Also the two signals that the C library keeps to itself: no handler may run in the child. */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, all, before, SIGSET_BYTES);
    pid_t pid = clone(child, w->stack_top, flags | CLONE_PIDFD, r, &r->pidfd, NULL, &r->pending);
    if (pid < 0 && (errno == EINVAL || errno == EPERM || errno == ENOSYS)) /* a filter that knows no CLONE_PIDFD */
        pid = clone(child, w->stack_top, flags, r, NULL, NULL, &r->pending);
    int error = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, SIGSET_BYTES);

    r->pid = pid;
    if (pid < 0) {
        r->error = error;
        r->step = SPAWN;
        return;
    }
    r->error = w->report->error;
    r->step = w->report->step;
    if (r->step == NONE && r->pidfd < 0) { /* Linux before 5.2 ignores the flag */
        r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (r->pidfd < 0 && errno != ENOSYS && errno != EPERM) {
            r->error = errno;
            r->step = SPAWN;
            kill_unclaimed(pid, -1);
        }
    }
}

/* For what the kernel does not say: no child came to be, or it had a copy of our memory. With `lock` held, so that the
 * request is still there. */
static void no_longer_pending(struct request *r) {
    if (__atomic_exchange_n(&r->pending, 0, __ATOMIC_ACQ_REL) != 0)
        syscall(SYS_futex, &r->pending, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

__attribute__((noreturn)) static void *work(void *argument) {
    struct worker *w = argument;
    prctl(PR_SET_NAME, "birthmark-spawn", 0, 0, 0);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!spawner.first) pthread_cond_wait(&wanted, &lock);
        struct request *r = spawner.first;
        if (!(spawner.first = r->next)) spawner.last = &spawner.first;
        *w->report = (struct report){0};
        r->report = w->report;
        r->state = RUNNING;
        pthread_mutex_unlock(&lock);

        give_birth(r, w);

        pthread_mutex_lock(&lock);
        r->state = BORN; /* from here on nobody but this thread signals or reaps it ... */
        pthread_mutex_unlock(&lock);
        if (r->step != NONE && r->pid > 0) { /* ... and never while it holds the lock */
            reap(r->pid);
            if (r->pidfd >= 0) close(r->pidfd);
        }
        pthread_mutex_lock(&lock);
        if (r->abandoned || r->taken) {
            pthread_mutex_unlock(&lock);
            if (r->abandoned && r->step == NONE) end_unclaimed(r->pid, r->pidfd);
            release(r);
            pthread_mutex_lock(&lock);
        } else {
            r->state = DONE;
            no_longer_pending(r);
            pthread_mutex_unlock(&lock);
            pthread_cond_broadcast(&finished);
            pthread_mutex_lock(&lock);
        }
    }
}

/* ---- in the caller, GIL held unless it says otherwise -------------------------------------------------------------- */

static PyObject *failure(int error, enum step step) { return Py_BuildValue("(is)", error, step_names[step]); }

static void end_unclaimed_without_gil(pid_t pid, int pidfd) {
    Py_BEGIN_ALLOW_THREADS
    end_unclaimed(pid, pidfd);
    Py_END_ALLOW_THREADS
}

static void forked(void) { spawner.owner = 0; }

/* Begin anew in a process that has no spawner thread: at first use, and after a fork that took the threads away. Nobody
 * else can be here: a forked child has one thread, and everyone else needs the GIL. The pid is compared as well because
 * not everything that forks runs the handlers. */
static int begin(void) {
    static int watching;
    if (spawner.owner == getpid()) return 0;
    if (!watching) {
        int error = pthread_atfork(NULL, NULL, forked);
        if (error) return error;
        watching = 1;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wanted, NULL);
    spawner.threads = 0;
    spawner.first = NULL;
    spawner.last = &spawner.first;
    spawner.owner = getpid();
    return 0;
}

/* Call with `lock` held. Returns an errno. */
static int add_thread(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct worker *w = malloc(sizeof *w);
    if (!w) return ENOMEM;
    char *stack = mmap(NULL, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    void *report = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int error = stack == MAP_FAILED || report == MAP_FAILED || mprotect(stack, page, PROT_NONE) ? ENOMEM : 0;
    if (!error) {
        sigset_t all, before;
        pthread_attr_t attributes;
        pthread_t thread;
        w->stack_top = stack + page + STACK_BYTES;
        w->report = report;
        sigfillset(&all);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: the host's handlers never run on our thread */
        error = pthread_create(&thread, &attributes, work, w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    if (error) {
        if (stack != MAP_FAILED) munmap(stack, STACK_BYTES + page);
        if (report != MAP_FAILED) munmap(report, page);
        free(w);
        return error;
    }
    spawner.threads++;
    return 0;
}

struct answer { pid_t pid; int pidfd, error; enum step step; };

/* Wait until the child has exec'ed or ended, or the time is over. The kernel's wake-up is not a private one. */
static void wait_while_pending(struct request *r, const struct timespec *until) {
    while (__atomic_load_n(&r->pending, __ATOMIC_ACQUIRE) != 0)
        if (syscall(SYS_futex, &r->pending, FUTEX_WAIT_BITSET, 1, until, NULL, FUTEX_BITSET_MATCH_ANY) != 0 &&
            errno != EINTR && errno != EAGAIN)
            return;
}

/* Call with `lock` held, when nothing is pending. Take the child if its exec has succeeded, though our thread has not come
 * to saying so: the report is the child's own, and the kernel wrote the descriptor before the child began. */
static int take(struct request *r, struct answer *answer) {
    if (r->state != RUNNING || r->report->step != NONE || r->report->pid <= 0 || r->pidfd < 0) return 0;
    *answer = (struct answer){r->report->pid, r->pidfd, 0, NONE};
    r->taken = 1;
    return 1;
}

/* Wait at most so long; says whether it is done, and then has freed the request or left it to the thread. Needs no GIL. */
static int done_within(struct request *r, int within_ms, struct answer *answer) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += within_ms * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    wait_while_pending(r, &until);
    pthread_mutex_lock(&lock);
    int pending = __atomic_load_n(&r->pending, __ATOMIC_ACQUIRE) != 0;
    if (!pending && take(r, answer)) {
        pthread_mutex_unlock(&lock);
        return 1;
    }
    /* It has failed, and is about to be reaped. */
    while (!pending && r->state != DONE && pthread_cond_timedwait(&finished, &lock, &until) == 0) {}
    int done = r->state == DONE;
    /* Still queued after that long: the threads there are hang in an exec, perhaps of a program on a file system that
     * waits for the very process we are asked to start. */
    if (!done && r->state == QUEUED && spawner.threads < MOST_THREADS) add_thread();
    pthread_mutex_unlock(&lock);
    if (done) {
        *answer = (struct answer){r->pid, r->pidfd, r->error, r->step};
        release(r);
    }
    return done;
}

/* Leave without the answer. Afterwards the request is the thread's, or freed. */
static void abandon(struct request *r) {
    pthread_mutex_lock(&lock);
    if (r->state == QUEUED) {
        struct request **at = &spawner.first;
        while (*at != r) at = &(*at)->next;
        if (!(*at = r->next)) spawner.last = at;
        pthread_mutex_unlock(&lock);
        release(r);
        return;
    }
    if (r->state == DONE) {
        pthread_mutex_unlock(&lock);
        if (r->step == NONE) end_unclaimed_without_gil(r->pid, r->pidfd);
        release(r);
        return;
    }
    r->abandoned = 1;
    /* An exec may hang for long; the thread waits for it and cannot act before. */
    if (r->state == RUNNING) kill_unclaimed(r->report->pid, r->pidfd);
    pthread_mutex_unlock(&lock);
}

/* Hand the request over and wait. Owns it. */
static PyObject *submit(struct request *r, PyObject *claimed) {
    int error = begin();
    if (!error) {
        pthread_mutex_lock(&lock);
        if (!spawner.threads) error = add_thread();
        if (!error) {
            *spawner.last = r;
            spawner.last = &r->next;
        }
        pthread_mutex_unlock(&lock);
        pthread_cond_signal(&wanted);
    }
    if (error) {
        release(r);
        return failure(error, SPAWN);
    }

    /* Giving the GIL away costs a busy host tens of milliseconds to get it back, so it is kept for as long as a launch
     * usually takes and much longer; but not for ever: the exec may wait for a file system that this process serves. */
    struct answer answer;
    int done = done_within(r, HELD_WAIT_MS, &answer);
    while (!done) {
        Py_BEGIN_ALLOW_THREADS
        done = done_within(r, RELEASED_WAIT_MS, &answer);
        Py_END_ALLOW_THREADS
        if (!done && PyErr_CheckSignals() != 0) {
            abandon(r);
            return NULL;
        }
    }

    pid_t pid = answer.pid;
    int pidfd = answer.pidfd;
    if (answer.step != NONE) return failure(answer.error, answer.step);

    PyObject *born = pidfd < 0 ? Py_BuildValue("(iO)", (int)pid, Py_None) : Py_BuildValue("(ii)", (int)pid, pidfd);
    if (!born || PyList_Append(claimed, born) != 0) {
        Py_XDECREF(born);
        end_unclaimed_without_gil(pid, pidfd);
        return NULL;
    }
    Py_DECREF(born);
    Py_RETURN_NONE;
}

/* ---- from Python values to a request ------------------------------------------------------------------------------- */

/* Return a copy of a bytes object without NUL, or NULL with an exception set. */
static char *copy_bytes(PyObject *value) {
    char *text;
    if (PyBytes_AsStringAndSize(value, &text, NULL) != 0) return NULL;
    char *copy = strdup(text);
    if (!copy) PyErr_NoMemory();
    return copy;
}

/* Return the strings of a list behind their pointers, as one block. */
static char **copy_strings(PyObject *list) {
    Py_ssize_t count = PyList_Size(list);
    size_t bytes = ((size_t)count + 1) * sizeof(char *);
    char *text;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (PyBytes_AsStringAndSize(item, &text, NULL) != 0) return NULL;
        bytes += (size_t)PyBytes_Size(item) + 1;
    }
    char **block = malloc(bytes);
    if (!block) {
        PyErr_NoMemory();
        return NULL;
    }
    char *at = (char *)(block + count + 1);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        size_t size = (size_t)PyBytes_Size(item) + 1;
        memcpy(at, PyBytes_AsString(item), size);
        block[i] = at;
        at += size;
    }
    block[count] = NULL;
    return block;
}

static void *array(Py_ssize_t count, size_t size) {
    void *block = calloc((size_t)count + 1, size);
    if (!block) PyErr_NoMemory();
    return block;
}

static int copy_descriptors(struct request *r, PyObject *list) {
    r->n_fds = PyList_Size(list);
    if (!(r->fds = array(r->n_fds, sizeof *r->fds))) return -1;
    for (Py_ssize_t i = 0; i < r->n_fds; i++) {
        struct pair fd;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "ii", &fd.ours, &fd.theirs)) return -1;
        Py_ssize_t at = i;
        for (; at > 0 && r->fds[at - 1].theirs >= fd.theirs; at--) {
            if (r->fds[at - 1].theirs == fd.theirs) break;
            r->fds[at] = r->fds[at - 1];
        }
        if (fd.theirs < 0 || fd.theirs == INT_MAX || (at > 0 && r->fds[at - 1].theirs == fd.theirs)) {
            PyErr_Format(PyExc_ValueError, "descriptor %d of the child is impossible or named twice", fd.theirs);
            return -1;
        }
        r->fds[at] = fd;
    }
    return 0;
}

static int copy_limits(struct request *r, PyObject *list) {
    r->n_limits = PyList_Size(list);
    if (!(r->limits = array(r->n_limits, sizeof *r->limits))) return -1;
    for (Py_ssize_t i = 0; i < r->n_limits; i++) {
        struct limit *limit = &r->limits[i];
        long long soft, hard;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "iLL", &limit->resource, &soft, &hard)) return -1;
        limit->soft = (uint64_t)soft; /* -1 is the kernel's infinity */
        limit->hard = (uint64_t)hard;
        limit->keep_hard = hard == KEEP_HARD;
    }
    return 0;
}

/* An id as the kernel takes it; 2^32-1 means "leave alone" to setresuid and is therefore no id. */
static int as_id(PyObject *value, unsigned *id) {
    unsigned long number = PyLong_AsUnsignedLong(value);
    if (PyErr_Occurred()) return -1;
    if (number >= UINT_MAX) {
        PyErr_Format(PyExc_ValueError, "%lu is no user or group id", number);
        return -1;
    }
    *id = (unsigned)number;
    return 0;
}

static int copy_groups(struct request *r, PyObject *value) {
    r->n_groups = -1;
    if (value == Py_None) return 0;
    Py_ssize_t count = PyList_Size(value);
    if (count < 0 || !(r->groups = array(count, sizeof *r->groups))) return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (as_id(PyList_GetItem(value, i), &r->groups[i]) != 0) return -1;
    r->n_groups = count;
    return 0;
}

PyDoc_STRVAR(launch_doc,
"launch(path, argv, env, cwd, fds, parent_death, session, umask, uid, gid, groups, limits, claimed)\n--\n\n"
"Start a program and append (pid, pidfd or None) to `claimed` once its exec has succeeded.\n\n"
"Returns None then, and (errno, step) if it never ran. Appending leaves no moment at which an exception\n"
"from a signal handler could lose a child: what is in `claimed` is the caller's to end.");

static PyObject *launch(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *path, *argv, *env, *cwd, *fds, *death, *mask, *uid, *gid, *groups, *limits, *claimed;
    int session;
    if (!PyArg_ParseTuple(arguments, "O!O!O!OO!OiOOOOO!O!:launch", &PyBytes_Type, &path, &PyList_Type, &argv, &PyList_Type,
                          &env, &cwd, &PyList_Type, &fds, &death, &session, &mask, &uid, &gid, &groups, &PyList_Type,
                          &limits, &PyList_Type, &claimed))
        return NULL;

    struct request *r = calloc(1, sizeof *r);
    if (!r) return PyErr_NoMemory();
    r->pidfd = -1;
    r->pending = 1;
    r->parent = getpid();
    r->session = session;
    r->sets_uid = uid != Py_None;
    r->sets_gid = gid != Py_None;

    if (!(r->path = copy_bytes(path)) || !(r->argv = copy_strings(argv)) || !(r->env = copy_strings(env))) goto wrong;
    if (cwd != Py_None && !(r->cwd = copy_bytes(cwd))) goto wrong;
    if (copy_descriptors(r, fds) || copy_limits(r, limits) || copy_groups(r, groups)) goto wrong;
    if (r->sets_uid && as_id(uid, &r->uid)) goto wrong;
    if (r->sets_gid && as_id(gid, &r->gid)) goto wrong;
    r->death = death == Py_None ? 0 : (int)PyLong_AsLong(death);
    r->umask = mask == Py_None ? -1 : (int)PyLong_AsLong(mask);
    if (PyErr_Occurred()) goto wrong;
    return submit(r, claimed);
wrong:
    release(r);
    return NULL;
}

/* ---- a look at another process, as the kernel shows it -------------------------------------------------------------- */

enum { STAT_BYTES = 1024, BLOCK_BYTES = 32 * 1024, TAG_RESOURCE = 15 };

/* Flags of a process in field 9: on its way out, forked and not exec'ed, of the kernel. */
#define UNUSUAL (0x4U | 0x40U | 0x00200000U)

static ssize_t read_start(int pid, const char *name, char *into, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t got = read(fd, into, size);
    close(fd);
    return got;
}

struct fields { char state; unsigned long long number[20]; };

/* Read fields 3 to 22 of the stat line; the command may hold spaces and brackets, so they count from the last one. */
static int read_fields(char *line, struct fields *into) {
    char *at = strrchr(line, ')');
    if (!at || at[1] != ' ' || !(into->state = at[2])) return -1;
    at += 3;
    for (int field = 1; field < 20; field++) {
        char *end;
        into->number[field] = strtoull(at, &end, 10);
        if (end == at) return -1;
        at = end;
    }
    return 0;
}

PyDoc_STRVAR(look_doc,
"look(pid, pidfd)\n--\n\n"
"Look at a running process once: stat, environment, tag, and the pidfd last, with the GIL given away once.\n\n"
"Returns (start_ticks, inode, ppid, pgid, session, state, threads, environ, tag or None), or None for anything\n"
"but the usual case, which is a process with an environment of its own that we may read and that fits 32 KiB.");

static PyObject *look(PyObject *Py_UNUSED(module), PyObject *arguments) {
    int pid, pidfd, error, readable = 0;
    if (!PyArg_ParseTuple(arguments, "ii:look", &pid, &pidfd)) return NULL;
    char line[STAT_BYTES], *block = malloc(BLOCK_BYTES);
    if (!block) return PyErr_NoMemory();
    ssize_t got, size = -1;
    struct { uint64_t soft, hard; } tag;
    struct stat inode;
    struct pollfd ended = {pidfd, POLLIN, 0};
    long tagged = -1;
    Py_BEGIN_ALLOW_THREADS
    /* The order is the proof: see birthmark.platforms.linux.observe. */
    got = read_start(pid, "stat", line, sizeof line - 1);
    if (got > 0) size = read_start(pid, "environ", block, BLOCK_BYTES);
    if (size > 0) tagged = syscall(SYS_prlimit64, pid, TAG_RESOURCE, NULL, &tag);
    error = size > 0 ? fstat(pidfd, &inode) : -1;
    if (!error) readable = poll(&ended, 1, 0);
    Py_END_ALLOW_THREADS
    PyObject *seen = NULL;
    struct fields fields;
    if (got > 0 && size > 0 && size < BLOCK_BYTES && !error && !readable && memchr(block, '=', (size_t)size)) {
        line[got] = 0;
        if (read_fields(line, &fields) == 0 && !(fields.number[6] & UNUSUAL)) {
            PyObject *value = tagged == 0 ? PyLong_FromLongLong((long long)tag.soft) : Py_NewRef(Py_None); /* infinity: -1 */
            if (value)
                seen = Py_BuildValue("(KKiiiCiy#N)", fields.number[19], (unsigned long long)inode.st_ino,
                                     (int)fields.number[1], (int)fields.number[2], (int)fields.number[3], fields.state,
                                     (int)fields.number[17], block, (Py_ssize_t)size, value);
        }
    }
    free(block);
    if (!seen && !PyErr_Occurred()) Py_RETURN_NONE;
    return seen;
}

static PyMethodDef functions[] = {
    {"launch", launch, METH_VARARGS, launch_doc}, {"look", look, METH_VARARGS, look_doc}, {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}}; /* an empty list: interpreters with a GIL of their own may not import it */
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "spawn", "Start a program from a native thread that lives as long as the process.", 0,
    functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_spawn(void) { return PyModuleDef_Init(&definition); }
