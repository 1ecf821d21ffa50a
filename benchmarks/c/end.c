/* end N PROGRAM: N times, start PROGRAM, wait for its byte, send SIGTERM through its pidfd, poll that; print the
 * nanoseconds from the signal to the poll's return. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#define SYS_pidfd_send_signal 424
#endif

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    for (int i = 0; i < atoi(argv[1]); i++) {
        int ends[2];
        char byte;
        if (pipe(ends) != 0) return 1;
        pid_t pid = fork();
        if (pid == 0) {
            dup2(ends[1], 1);
            close(ends[0]);
            close(ends[1]);
            execl(argv[2], argv[2], (char *)NULL);
            _exit(127);
        }
        close(ends[1]);
        int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (fd < 0 || read(ends[0], &byte, 1) != 1) return 1;
        usleep(1000); /* from its byte to its wait */
        struct pollfd poller = {fd, POLLIN, 0};
        long long began = now();
        syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0);
        poll(&poller, 1, -1);
        printf("%lld\n", now() - began);
        waitpid(pid, NULL, 0);
        close(fd);
        close(ends[0]);
    }
    return 0;
}
