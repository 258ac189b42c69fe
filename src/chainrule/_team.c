/* Work that several threads share: see _team.py.

   Work comes in pieces. The caller takes them from the front, helpers from the back, until none is left, so
   that work on the same memory, time after time, finds each part in the same cache. The caller never
   waits for a helper to wake up: one that comes late finds less to do, or nothing.

   Helpers know nothing of Python. They sleep, but for a moment after each turn. To wake one takes 20 µs where
   something has just run, but hundreds on a machine that was idle, more than a single one saves: on two
   processors it is woken soon after other work, and for what takes long. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

enum { LONG_NS = 400000, RECENT_NS = 300000, AWAKE_NS = 100000 };
enum { TURNS_BETWEEN_YIELDS = 64, TURNS_BEFORE_YIELD = 4096 };

typedef void piece_function(void *context, size_t piece);

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t bell;
    atomic_flag is_taken; /* somebody has work shared */
    atomic_uint work;     /* which work it is; odd while helpers may join */
    atomic_int sleeping;  /* helpers that have to be woken */
    atomic_int inside;    /* helpers that may touch the memory of the caller */
    atomic_size_t taken;  /* pieces, from either end; may be more than there are */
    atomic_size_t taken_by_helpers;
    long long end; /* of the last work */
    int helpers;
    piece_function *function;
    void *context;
    size_t pieces;
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

static int is_new(unsigned work, unsigned last) { return work % 2 && work != last; }

/* Wait for work that may be joined, other than the last: awake for a moment, then asleep. */
static unsigned wait_for_work(unsigned last) {
    for (;;) {
        long long end = now() + AWAKE_NS;
        for (unsigned turn = 1; turn % TURNS_BETWEEN_YIELDS || now() < end; turn++) {
            unsigned work = atomic_load(&team.work);
            if (is_new(work, last)) return work;
            if (turn % TURNS_BETWEEN_YIELDS)
                rest();
            else
                sched_yield(); /* whoever else has work goes first */
        }
        pthread_mutex_lock(&team.mutex);
        atomic_fetch_add(&team.sleeping, 1); /* before the look: a caller begins, then looks at this */
        if (!is_new(atomic_load(&team.work), last)) pthread_cond_wait(&team.bell, &team.mutex);
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
    pthread_setname_np(pthread_self(), "chainrule-team");
#endif
    for (;;) {
        last = wait_for_work(last);
        atomic_fetch_add(&team.inside, 1); /* before the look: a caller ends, then looks at this */
        if (atomic_load(&team.work) == last)
            while (take_piece())
                team.function(team.context, team.pieces - 1 - atomic_fetch_add(&team.taken_by_helpers, 1));
        atomic_fetch_sub(&team.inside, 1);
    }
    return nothing;
}

/* As in a new process, and in one that a fork has left without the threads of its parent. */
static void begin_anew(void) {
    memset(&team, 0, sizeof team);
    pthread_mutex_init(&team.mutex, NULL);
    pthread_cond_init(&team.bell, NULL);
}

/* Start helpers, once in every process; how many could be had. */
int chainrule_start(int helpers) {
    static int knows_forks;
    sigset_t all, before;
    int started = 0;
    begin_anew();
    if (!knows_forks) knows_forks = !pthread_atfork(NULL, NULL, begin_anew);
    sigfillset(&all); /* signals are for the threads of Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; started < helpers; started++) {
        if (pthread_create(&thread, NULL, help, NULL)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    team.helpers = started;
    return started;
}

/* Call a function for each piece, with whoever comes to help; about how long would it take alone? */
void chainrule_share(piece_function *function, void *context, size_t pieces, long long expected_ns) {
    if (atomic_flag_test_and_set(&team.is_taken)) { /* by another caller */
        for (size_t piece = 0; piece < pieces; piece++) function(context, piece);
        return;
    }
    long long start = now();
    team.function = function;
    team.context = context;
    team.pieces = pieces;
    atomic_store(&team.taken, 0);
    atomic_store(&team.taken_by_helpers, 0);
    atomic_fetch_add(&team.work, 1);
    int are_worth_waking = team.helpers > 1 || expected_ns >= LONG_NS || start - team.end < RECENT_NS;
    if (are_worth_waking && atomic_load(&team.sleeping)) wake_helpers();
    for (size_t piece = 0; take_piece(); piece++) function(context, piece);
    atomic_fetch_add(&team.work, 1);
    for (unsigned turn = 1; atomic_load(&team.inside); turn++) {
        rest();
        if (turn % TURNS_BEFORE_YIELD == 0) sched_yield(); /* a helper may need this processor */
    }
    team.end = now();
    atomic_flag_clear(&team.is_taken);
}

enum { PIECE_BYTES = 1 << 17, BYTES_PER_NS = 40 };

typedef struct {
    char *target;
    const char *source;
    size_t size;
} Copy;

static void copy_piece(void *context, size_t piece) {
    const Copy *copy = context;
    size_t start = piece * PIECE_BYTES, left = copy->size - start;
    memcpy(copy->target + start, copy->source + start, left < PIECE_BYTES ? left : PIECE_BYTES);
}

/* Copy between pieces of memory that do not overlap. */
void chainrule_copy(char *target, const char *source, size_t size) {
    Copy copy = {target, source, size};
    chainrule_share(copy_piece, &copy, (size + PIECE_BYTES - 1) / PIECE_BYTES, (long long)(size / BYTES_PER_NS));
}
