/* Copies that several threads share: see _copying.py.

   A copy is cut into pieces. The caller takes them from the front, helpers from the back, until none is left,
   so that copies of the same memory, one after the other, find each part in the same cache. The caller
   never waits for a helper to wake up: one that comes late finds less to do, or nothing.

   Helpers know nothing of Python. They sleep, but for a moment after each copy. To wake one takes 20 µs where
   something has just run, but hundreds on a machine that was idle, more than it saves: so they are woken
   soon after another copy, and for what is very large. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

enum { PIECE = 1 << 17, VERY_LARGE = 1 << 24, RECENT_NS = 300000 };
enum { AWAKE_NS = 100000, TURNS_BETWEEN_LOOKS = 64, TURNS_BEFORE_YIELD = 4096 };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t bell;
    atomic_flag is_taken; /* somebody copies */
    atomic_uint copy;     /* which copy it is; odd while helpers may join */
    atomic_int sleeping;  /* helpers that have to be woken */
    atomic_int inside;    /* helpers that may touch the memory of the caller */
    atomic_size_t taken;  /* pieces, from either end; may be more than there are */
    atomic_size_t taken_by_helpers;
    long long end; /* of the last copy */
    size_t pieces, size;
    char *target;
    const char *source;
} team;

static void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int take_piece(void) { return atomic_fetch_add(&team.taken, 1) < team.pieces; }

static void copy_piece(size_t number) {
    size_t start = number * PIECE, left = team.size - start;
    memcpy(team.target + start, team.source + start, left < PIECE ? left : PIECE);
}

static int is_new(unsigned copy, unsigned last) { return copy % 2 && copy != last; }

/* Wait for a copy that may be joined, other than the last one: awake for a moment, then asleep. */
static unsigned wait_for_copy(unsigned last) {
    for (;;) {
        long long end = now() + AWAKE_NS;
        for (unsigned turn = 1; turn % TURNS_BETWEEN_LOOKS || now() < end; turn++) {
            unsigned copy = atomic_load(&team.copy);
            if (is_new(copy, last)) return copy;
            rest();
        }
        pthread_mutex_lock(&team.mutex);
        atomic_fetch_add(&team.sleeping, 1); /* before the look: a caller begins a copy, then looks at this */
        if (!is_new(atomic_load(&team.copy), last)) pthread_cond_wait(&team.bell, &team.mutex);
        atomic_fetch_sub(&team.sleeping, 1);
        pthread_mutex_unlock(&team.mutex);
    }
}

static void wake_helpers(void) {
    pthread_mutex_lock(&team.mutex);
    pthread_cond_broadcast(&team.bell);
    pthread_mutex_unlock(&team.mutex);
}

static void *help(void *nothing) {
    unsigned last = 0;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "chainrule-copy");
#endif
    for (;;) {
        last = wait_for_copy(last);
        atomic_fetch_add(&team.inside, 1); /* before the look: a caller ends a copy, then looks at this */
        if (atomic_load(&team.copy) == last)
            while (take_piece()) copy_piece(team.pieces - 1 - atomic_fetch_add(&team.taken_by_helpers, 1));
        atomic_fetch_sub(&team.inside, 1);
    }
    return nothing;
}

/* Start helpers; how many could be had. Once in every process: what a fork has left of its parent's team is
   forgotten. */
int chainrule_start_copying(int helpers) {
    sigset_t all, before;
    int started = 0;
    memset(&team, 0, sizeof team);
    pthread_mutex_init(&team.mutex, NULL);
    pthread_cond_init(&team.bell, NULL);
    sigfillset(&all); /* signals are for the threads of Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; started < helpers; started++) {
        if (pthread_create(&thread, NULL, help, NULL)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Copy between pieces of memory that do not overlap, with whoever comes to help. */
void chainrule_copy(char *target, const char *source, size_t size) {
    if (atomic_flag_test_and_set(&team.is_taken)) { /* by another caller */
        memcpy(target, source, size);
        return;
    }
    long long start = now();
    team.target = target;
    team.source = source;
    team.size = size;
    team.pieces = (size + PIECE - 1) / PIECE;
    atomic_store(&team.taken, 0);
    atomic_store(&team.taken_by_helpers, 0);
    atomic_fetch_add(&team.copy, 1);
    int are_worth_waking = size >= VERY_LARGE || start - team.end < RECENT_NS;
    if (are_worth_waking && atomic_load(&team.sleeping)) wake_helpers();
    for (size_t number = 0; take_piece(); number++) copy_piece(number);
    atomic_fetch_add(&team.copy, 1);
    for (unsigned turn = 1; atomic_load(&team.inside); turn++) {
        rest();
        if (turn % TURNS_BEFORE_YIELD == 0) sched_yield(); /* a helper may need this processor */
    }
    team.end = now();
    atomic_flag_clear(&team.is_taken);
}
