/* obey: print a byte, then wait for a signal; SIGTERM ends it at once. */
#include <unistd.h>

int main(void) {
    if (write(1, "!", 1) != 1) return 1;
    for (;;) pause();
}
