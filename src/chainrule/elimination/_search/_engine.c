/* Evaluating elimination orders, fast. The twin of _python_engine.py, which says what everything means.
 *
 * Neighbourhoods are rows of bits. Edges carry structure numbers; products and sums of structures are
 * looked up in square tables that Python fills: a pair that is not in its table yet is asked for. Python is
 * also asked, every few positions of an order, whether to go on; a call that it stops returns STOPPED.
 *
 * A change can be taken back: every write goes through a journal while one is being kept.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWN = -2, ZERO = -1, STOPPED = -1, NO_MEMORY = -2 };
enum { GO_ON = 0, PRODUCT = 1, SUM = 2 };
enum { MAX_WINDOW = 12 };

typedef struct {
    int32_t size, words, capacity;
    const uint8_t *kept, *eliminable;
    const uint64_t *predecessors, *successors; /* size × words */
    const int32_t *edges;                      /* size × size, row = source */
    const int32_t *product_structure, *sum_structure; /* capacity × capacity */
    const int64_t *product_cost, *sum_cost;
    void (*ask)(int32_t kind);
    int32_t first, second, goes_on; /* what is asked for; out: set by Python for an answer */
    int32_t chosen;      /* out: vertices a greedy pass has chosen */
    int64_t evaluations; /* out: eliminations tried */
} Problem;

typedef struct { uint64_t *bits; int32_t *edge; uint64_t old; } Write;

typedef struct {
    Problem *problem;
    uint64_t *predecessors, *successors;
    int32_t *edges, *before, *after;
    Write *journal;
    size_t written, room;
    int keeping, failed;
} Graph;

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state) { return (double)(next_random(state) >> 11) * 0x1p-53; }

static void reset(Graph *g) {
    const Problem *p = g->problem;
    size_t rows = (size_t)p->size * p->words * sizeof(uint64_t);
    memcpy(g->predecessors, p->predecessors, rows);
    memcpy(g->successors, p->successors, rows);
    memcpy(g->edges, p->edges, (size_t)p->size * p->size * sizeof(int32_t));
    g->written = 0;
    g->keeping = 0;
}

static void close_graph(Graph *g) {
    free(g->predecessors); free(g->successors); free(g->edges);
    free(g->before); free(g->after); free(g->journal);
}

static int open_graph(Graph *g, Problem *p) {
    size_t rows = (size_t)p->size * p->words * sizeof(uint64_t);
    memset(g, 0, sizeof *g);
    g->problem = p;
    g->predecessors = malloc(rows);
    g->successors = malloc(rows);
    g->edges = malloc((size_t)p->size * p->size * sizeof(int32_t));
    g->before = malloc(p->size * sizeof(int32_t));
    g->after = malloc(p->size * sizeof(int32_t));
    g->room = 4096;
    g->journal = malloc(g->room * sizeof(Write));
    if (!g->predecessors || !g->successors || !g->edges || !g->before || !g->after || !g->journal) {
        close_graph(g);
        return 0;
    }
    reset(g);
    return 1;
}

static void remember(Graph *g, uint64_t *bits, int32_t *edge) {
    if (!g->keeping) return;
    if (g->written == g->room) {
        Write *larger = realloc(g->journal, 2 * g->room * sizeof(Write));
        if (!larger) { g->failed = 1; return; }
        g->journal = larger;
        g->room *= 2;
    }
    g->journal[g->written++] = (Write){bits, edge, bits ? *bits : (uint64_t)(uint32_t)*edge};
}

static void take_back(Graph *g, size_t mark) {
    while (g->written > mark) {
        Write w = g->journal[--g->written];
        if (w.bits) *w.bits = w.old; else *w.edge = (int32_t)(uint32_t)w.old;
    }
}

static void set_bit(Graph *g, uint64_t *row, int32_t i) {
    uint64_t *word = row + (i >> 6), bit = (uint64_t)1 << (i & 63);
    if (!(*word & bit)) { remember(g, word, NULL); *word |= bit; }
}

static void clear_bit(Graph *g, uint64_t *row, int32_t i) {
    uint64_t *word = row + (i >> 6), bit = (uint64_t)1 << (i & 63);
    if (*word & bit) { remember(g, word, NULL); *word &= ~bit; }
}

static int has_bit(const uint64_t *row, int32_t i) { return row[i >> 6] >> (i & 63) & 1; }

static int members(const uint64_t *row, int words, int32_t *out) {
    int count = 0;
    for (int w = 0; w < words; w++)
        for (uint64_t rest = row[w]; rest; rest &= rest - 1) out[count++] = 64 * w + __builtin_ctzll(rest);
    return count;
}

/* Have Python fill in a pair, or only say whether to go on; 0 to stop. The tables may be others afterwards. */
__attribute__((noinline, cold)) static int ask(Problem *p, int32_t kind, int32_t first, int32_t second) {
    p->first = first;
    p->second = second;
    p->goes_on = 0;
    p->ask(kind);
    return p->goes_on;
}

static int goes_on(const Graph *g) { return ask(g->problem, GO_ON, 0, 0); }

/* Cost and resulting structure of one product, the sum with a present edge included. */
static int combine(Graph *g, int32_t source, int32_t vertex, int32_t target, int32_t *made, int64_t *cost) {
    Problem *p = g->problem;
    int32_t out_edge = g->edges[vertex * p->size + target], in_edge = g->edges[source * p->size + vertex];
    size_t at = (size_t)out_edge * p->capacity + in_edge;
    while ((*made = p->product_structure[at]) == UNKNOWN) {
        if (!ask(p, PRODUCT, out_edge, in_edge)) return 0;
        at = (size_t)out_edge * p->capacity + in_edge;
    }
    *cost = p->product_cost[at];
    if (*made != ZERO && has_bit(g->successors + source * p->words, target)) {
        int32_t present = g->edges[source * p->size + target], sum;
        at = (size_t)present * p->capacity + *made;
        while ((sum = p->sum_structure[at]) == UNKNOWN) {
            if (!ask(p, SUM, present, *made)) return 0;
            at = (size_t)present * p->capacity + *made;
        }
        *cost += p->sum_cost[at];
        *made = sum;
    }
    return 1;
}

static int64_t cost_of(Graph *g, int32_t vertex) {
    const Problem *p = g->problem;
    int n_before = members(g->predecessors + vertex * p->words, p->words, g->before);
    int n_after = members(g->successors + vertex * p->words, p->words, g->after);
    int64_t total = 0, cost;
    int32_t made;
    for (int k = 0; k < n_after; k++)
        for (int i = 0; i < n_before; i++) {
            if (!combine(g, g->before[i], vertex, g->after[k], &made, &cost)) return STOPPED;
            total += cost;
        }
    return total;
}

static int64_t eliminate(Graph *g, int32_t vertex) {
    Problem *p = g->problem;
    int32_t n = p->size, words = p->words;
    int n_before = members(g->predecessors + vertex * words, words, g->before);
    int n_after = members(g->successors + vertex * words, words, g->after);
    int64_t total = 0, cost;
    int32_t made;
    p->evaluations++;
    for (int k = 0; k < n_after; k++) {
        int32_t target = g->after[k];
        for (int i = 0; i < n_before; i++) {
            int32_t source = g->before[i], *edge = g->edges + source * n + target;
            if (!combine(g, source, vertex, target, &made, &cost)) return STOPPED;
            total += cost;
            if (made == ZERO) continue;
            if (*edge != made) { remember(g, NULL, edge); *edge = made; }
            set_bit(g, g->successors + source * words, target);
            set_bit(g, g->predecessors + target * words, source);
        }
    }
    for (int k = 0; k < n_after; k++) {
        clear_bit(g, g->predecessors + g->after[k] * words, vertex);
        clear_bit(g, g->successors + vertex * words, g->after[k]);
    }
    if (!p->kept[vertex])
        for (int i = 0; i < n_before; i++) {
            clear_bit(g, g->successors + g->before[i] * words, vertex);
            clear_bit(g, g->predecessors + vertex * words, g->before[i]);
        }
    return total;
}

static int64_t run(Graph *g, const int32_t *order, int32_t length, int64_t *costs) {
    int64_t total = 0;
    for (int32_t i = 0; i < length; i++) {
        costs[i] = eliminate(g, order[i]);
        if (costs[i] == STOPPED) return STOPPED;
        total += costs[i];
    }
    return total;
}

int64_t chainrule_costs(Problem *p, const int32_t *order, int32_t length, int64_t *costs) {
    Graph g;
    if (!open_graph(&g, p)) return NO_MEMORY;
    int64_t total = run(&g, order, length, costs);
    close_graph(&g);
    return total;
}

/* The vertex's cost plus look_ahead × the change of its neighbours' costs. */
static int score(Graph *g, int32_t vertex, double look_ahead, int32_t *near, double *result) {
    const Problem *p = g->problem;
    int64_t cost = cost_of(g, vertex), change = 0;
    if (cost == STOPPED) return 0;
    *result = (double)cost;
    if (look_ahead == 0) return 1;
    int count = members(g->predecessors + vertex * p->words, p->words, near);
    count += members(g->successors + vertex * p->words, p->words, near + count);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < count; i++) {
            if (!p->eliminable[near[i]]) continue;
            int64_t of_neighbour = cost_of(g, near[i]);
            if (of_neighbour == STOPPED) return 0;
            change += sign * of_neighbour;
        }
        if (sign < 0) {
            g->keeping = 1;
            if (eliminate(g, vertex) == STOPPED) return 0;
        }
    }
    take_back(g, 0);
    g->keeping = 0;
    *result += look_ahead * (double)change;
    return !g->failed;
}

int64_t chainrule_greedy(Problem *p, int32_t *order, int32_t length, double look_ahead, double noise,
                         uint64_t seed) {
    Graph g;
    if (!open_graph(&g, p)) return NO_MEMORY;
    int32_t *near = malloc(2 * p->size * sizeof(int32_t));
    int64_t total = near ? 0 : NO_MEMORY;
    for (int32_t done = 0; total >= 0 && done < length; done++) {
        int32_t best = done;
        double lowest = INFINITY, lowest_tie = 0;
        p->chosen = done;
        if (!goes_on(&g)) { total = STOPPED; break; }
        for (int32_t i = done; i < length; i++) {
            double value, tie;
            if (!score(&g, order[i], look_ahead, near, &value)) {
                total = g.failed ? NO_MEMORY : STOPPED;
                break;
            }
            value *= 1 + noise * uniform(&seed);
            tie = uniform(&seed);
            if (value < lowest || (value == lowest && tie < lowest_tie)) {
                lowest = value; lowest_tie = tie; best = i;
            }
        }
        if (total < 0) break;
        int32_t vertex = order[best];
        order[best] = order[done];
        order[done] = vertex;
        int64_t cost = eliminate(&g, vertex);
        total = cost == STOPPED ? STOPPED : total + cost;
    }
    free(near);
    close_graph(&g);
    return total;
}

static void rotate(int32_t *segment, int32_t last, int forward) {
    if (forward) {
        int32_t first = segment[0];
        memmove(segment, segment + 1, last * sizeof(int32_t));
        segment[last] = first;
    } else {
        int32_t final = segment[last];
        memmove(segment + 1, segment, last * sizeof(int32_t));
        segment[0] = final;
    }
}

/* One pass per temperature; `best` receives the cheapest order seen at the end of a pass. */
int64_t chainrule_anneal(Problem *p, int32_t *order, int32_t length, const double *temperatures,
                         int32_t passes, int32_t window, int32_t tries, uint64_t seed, int32_t *best) {
    Graph g;
    if (!open_graph(&g, p)) return NO_MEMORY;
    int64_t *costs = malloc(length * sizeof(int64_t)), *fresh = malloc(length * sizeof(int64_t));
    int64_t total = costs && fresh ? run(&g, order, length, costs) : NO_MEMORY, lowest = total;
    memcpy(best, order, length * sizeof(int32_t));
    for (int32_t pass = 0; total >= 0 && pass < passes; pass++) {
        reset(&g);
        for (int32_t at = 0; total >= 0 && at < length - 1; at++) {
            if (at % 64 == 0 && !goes_on(&g)) { total = STOPPED; break; }
            for (int32_t attempt = 0; attempt < tries; attempt++) {
                int32_t last = at + 1 + (int32_t)(next_random(&seed) % (uint64_t)window);
                if (last > length - 1) last = length - 1;
                int32_t span = last - at;
                int forward = (int)(next_random(&seed) & 1);
                int64_t change = 0;
                rotate(order + at, span, forward);
                g.keeping = 1;
                for (int32_t i = 0; i <= span; i++) {
                    fresh[i] = eliminate(&g, order[at + i]);
                    if (fresh[i] == STOPPED) { total = STOPPED; break; }
                    change += fresh[i] - costs[at + i];
                }
                if (g.failed) total = NO_MEMORY;
                if (total < 0) break;
                take_back(&g, 0);
                g.keeping = 0;
                if (change <= 0 || (temperatures[pass] > 0 &&
                                    uniform(&seed) < exp(-(double)change / temperatures[pass]))) {
                    memcpy(costs + at, fresh, (span + 1) * sizeof(int64_t));
                    total += change;
                } else {
                    rotate(order + at, span, !forward);
                }
            }
            if (total >= 0 && eliminate(&g, order[at]) == STOPPED) total = STOPPED;
        }
        if (total >= 0 && total < lowest) {
            lowest = total;
            memcpy(best, order, length * sizeof(int32_t));
        }
    }
    free(costs); free(fresh);
    close_graph(&g);
    return total < 0 ? total : lowest;
}

/* Costs of every vertex of a window after every subset of it; each subset is reached once. */
static int explore(Graph *g, const int32_t *segment, int width, int next, unsigned chosen, int64_t *costs) {
    for (int v = 0; v < width; v++)
        if (!(chosen >> v & 1)) {
            int64_t cost = cost_of(g, segment[v]);
            if (cost == STOPPED) return 0;
            costs[chosen * MAX_WINDOW + v] = cost;
        }
    for (int v = next; v < width; v++) {
        size_t mark = g->written;
        if (eliminate(g, segment[v]) == STOPPED || g->failed) return 0;
        if (!explore(g, segment, width, v + 1, chosen | 1u << v, costs)) return 0;
        take_back(g, mark);
    }
    return 1;
}

static void best_segment(int32_t *segment, int width, const int64_t *costs, int64_t *totals, int8_t *last) {
    unsigned all = (1u << width) - 1;
    int32_t chosen_order[MAX_WINDOW];
    totals[0] = 0;
    for (unsigned set = 1; set <= all; set++) {
        totals[set] = INT64_MAX;
        for (int v = 0; v < width; v++) {
            if (!(set >> v & 1)) continue;
            unsigned without = set & ~(1u << v);
            int64_t total = totals[without] + costs[without * MAX_WINDOW + v];
            if (total < totals[set]) { totals[set] = total; last[set] = (int8_t)v; }
        }
    }
    int64_t unchanged = 0;
    for (int v = 0; v < width; v++) unchanged += costs[((1u << v) - 1) * MAX_WINDOW + v];
    if (totals[all] >= unchanged) return;
    unsigned set = all;
    for (int place = width - 1; place >= 0; place--) {
        chosen_order[place] = segment[last[set]];
        set &= ~(1u << last[set]);
    }
    memcpy(segment, chosen_order, width * sizeof(int32_t));
}

int64_t chainrule_windows(Problem *p, int32_t *order, int32_t length, int32_t width) {
    Graph g;
    if (width > MAX_WINDOW) width = MAX_WINDOW;
    size_t subsets = (size_t)1 << width;
    if (!open_graph(&g, p)) return NO_MEMORY;
    int64_t *costs = malloc(subsets * MAX_WINDOW * sizeof(int64_t));
    int64_t *totals = malloc(subsets * sizeof(int64_t)), result = 0;
    int8_t *last = malloc(subsets);
    if (!costs || !totals || !last) result = NO_MEMORY;
    for (int32_t at = 0; result >= 0 && at < length; at++) {
        int here = length - at < width ? length - at : width;
        if (!goes_on(&g)) { result = STOPPED; break; }
        g.keeping = 1;
        if (!explore(&g, order + at, here, 0, 0, costs)) { result = g.failed ? NO_MEMORY : STOPPED; break; }
        g.keeping = 0;
        g.written = 0;
        best_segment(order + at, here, costs, totals, last);
        int64_t cost = eliminate(&g, order[at]);
        result = cost == STOPPED ? STOPPED : result + cost;
    }
    free(costs); free(totals); free(last);
    close_graph(&g);
    return result;
}
