/* stamp: write the monotonic clock (ns, 20 digits) to descriptor 1 and exit: "main() of the target runs now". */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(void) {
    struct timespec t;
    char text[32];
    clock_gettime(CLOCK_MONOTONIC, &t);
    int length = snprintf(text, sizeof text, "%020lld", t.tv_sec * 1000000000LL + t.tv_nsec);
    return write(1, text, (size_t)length) != length;
}
