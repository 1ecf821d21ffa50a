/* crowd N FDS: N sleeping processes with FDS further descriptors each, every other one a socket. Prints a line when all
 * are there, and ends them when its stdin closes; they also die with it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int count = atoi(argv[1]), fds = atoi(argv[2]);
    pid_t *pids = calloc((size_t)count + 1, sizeof *pids), me = getpid();
    int ends[2];
    char byte;
    if (!pids || pipe(ends) != 0) return 1;
    for (int i = 0; i < count; i++) {
        if ((pids[i] = fork()) < 0) {
            count = i;
            break;
        }
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != me) _exit(1);
            close(0);
            close(1);
            for (int k = 0; k < fds; k++)
                if (k % 2) open("/dev/null", O_RDONLY);
                else socket(AF_UNIX, SOCK_STREAM, 0);
            if (write(ends[1], "!", 1) != 1) _exit(1);
            for (;;) pause();
        }
    }
    for (int ready = 0; ready < count; ready++)
        if (read(ends[0], &byte, 1) != 1) return 1;
    printf("%d\n", count);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    for (int i = 0; i < count; i++) kill(pids[i], SIGKILL);
    while (wait(NULL) > 0) {}
    return 0;
}
