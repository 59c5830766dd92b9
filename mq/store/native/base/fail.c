/* fail.c: counts the passages of each fail point, and acts as MQ_FAIL says. See fail.h. */
#include "base/fail.h"

#ifdef MQ_FAIL_POINTS

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic long passages[MQ_FAIL_POINT_COUNT];

int mq_fail_at(int point) {
    const char *text = getenv("MQ_FAIL");
    if (!text) return 0;
    char *rest;
    long wanted = strtol(text, &rest, 10);
    if (wanted != point || *rest != ':') return 0;
    long number = strtol(rest + 1, &rest, 10);
    long passage = atomic_fetch_add(&passages[point], 1) + 1;
    if (passage >= number && strcmp(rest, ":failing") == 0) return 1;
    if (passage != number) return 0;
    if (strcmp(rest, ":fail") == 0) return 1;
    if (strcmp(rest, ":stop") == 0) {
        raise(SIGSTOP); /* of this very thread: a signal to the process may stop it a little later */
        return 0;
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#else

/* ISO C wants something in every unit. */
extern int mq_fail_points_are_off;

#endif
