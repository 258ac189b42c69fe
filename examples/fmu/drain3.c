/* Three tanks that drain: x' = -k x² + g u, y = u · Σx. An FMU of FMI 3 for model exchange and co-simulation,
   with directional and adjoint derivatives. What is not here is a stub that build.py writes. */

#include <stdlib.h>
#include <string.h>

#include "fmi3Functions.h"

#define N 3
enum { TIME, X, DX, U, K, G, Y, MODE };
enum { WORKS, FAILS, ABORTS };

typedef struct {
    double time, x[N], u, k[N], g;
    int mode;
} Model;

typedef struct {
    Model m;
    fmi3InstanceEnvironment environment;
    fmi3LogMessageCallback log;
} Instance;

static const Model START = {0, {4, 2, 1}, 1, {0.1, 0.2, 0.3}, 2, WORKS};

static fmi3Status derivatives(Instance *s, double dx[]) {
    if (s->m.mode == ABORTS) abort();
    if (s->m.mode == FAILS) {
        s->log(s->environment, fmi3Error, "logStatusError", "the drain is blocked");
        return fmi3Error;
    }
    for (int i = 0; i < N; i++) dx[i] = -s->m.k[i] * s->m.x[i] * s->m.x[i] + s->m.g * s->m.u;
    return fmi3OK;
}

static double *place(Instance *s, fmi3ValueReference r, size_t *n) {
    *n = r == X || r == K ? N : 1;
    switch (r) {
        case TIME: return &s->m.time;
        case X: return s->m.x;
        case U: return &s->m.u;
        case K: return s->m.k;
        case G: return &s->m.g;
        default: return NULL;
    }
}

/* The block of the Jacobian of one unknown (DX, Y or X) by one known, row by row; returns its width. */
static size_t block(Instance *s, fmi3ValueReference unknown, fmi3ValueReference known, double out[N][N]) {
    memset(out, 0, sizeof(double[N][N]));
    for (int i = 0; i < N; i++) {
        double x = s->m.x[i];
        if (unknown == DX) {
            if (known == X) out[i][i] = -2 * s->m.k[i] * x;
            if (known == K) out[i][i] = -x * x;
            if (known == U) out[i][0] = s->m.g;
            if (known == G) out[i][0] = s->m.u;
        } else if (unknown == Y) {
            if (known == X) out[0][i] = s->m.u;
            if (known == U) out[0][0] += x;
        } else if (known == X) {
            out[i][i] = 1;
        }
    }
    return known == X || known == K ? N : 1;
}

static size_t height(fmi3ValueReference unknown) { return unknown == Y ? 1 : N; }

fmi3Status fmi3GetDirectionalDerivative(fmi3Instance i, const fmi3ValueReference unknowns[], size_t nu,
        const fmi3ValueReference knowns[], size_t nk, const double seed[], size_t ns, double out[], size_t no) {
    double b[N][N];
    memset(out, 0, no * sizeof(double));
    for (size_t a = 0, row = 0; a < nu; row += height(unknowns[a++]))
        for (size_t c = 0, column = 0; c < nk; c++) {
            size_t width = block(i, unknowns[a], knowns[c], b);
            for (size_t p = 0; p < height(unknowns[a]); p++)
                for (size_t q = 0; q < width; q++) out[row + p] += b[p][q] * seed[column + q];
            column += width;
        }
    return fmi3OK;
}

fmi3Status fmi3GetAdjointDerivative(fmi3Instance i, const fmi3ValueReference unknowns[], size_t nu,
        const fmi3ValueReference knowns[], size_t nk, const double seed[], size_t ns, double out[], size_t no) {
    double b[N][N];
    memset(out, 0, no * sizeof(double));
    for (size_t a = 0, row = 0; a < nu; row += height(unknowns[a++]))
        for (size_t c = 0, column = 0; c < nk; c++) {
            size_t width = block(i, unknowns[a], knowns[c], b);
            for (size_t p = 0; p < height(unknowns[a]); p++)
                for (size_t q = 0; q < width; q++) out[column + q] += b[p][q] * seed[row + p];
            column += width;
        }
    return fmi3OK;
}

const char *fmi3GetVersion(void) { return "3.0"; }

static fmi3Instance make(fmi3String token, fmi3InstanceEnvironment environment, fmi3LogMessageCallback log) {
    if (strcmp(token, "{drain-3}")) return NULL;
    Instance *s = malloc(sizeof *s);
    *s = (Instance){START, environment, log};
    return s;
}

fmi3Instance fmi3InstantiateModelExchange(fmi3String name, fmi3String token, fmi3String resources,
        fmi3Boolean visible, fmi3Boolean logging, fmi3InstanceEnvironment e, fmi3LogMessageCallback log) {
    return make(token, e, log);
}

fmi3Instance fmi3InstantiateCoSimulation(fmi3String name, fmi3String token, fmi3String resources,
        fmi3Boolean visible, fmi3Boolean logging, fmi3Boolean events, fmi3Boolean early,
        const fmi3ValueReference intermediate[], size_t n, fmi3InstanceEnvironment e,
        fmi3LogMessageCallback log, fmi3IntermediateUpdateCallback update) {
    return make(token, e, log);
}

void fmi3FreeInstance(fmi3Instance i) { free(i); }

fmi3Status fmi3Reset(fmi3Instance i) {
    ((Instance *)i)->m = START;
    return fmi3OK;
}

fmi3Status fmi3EnterInitializationMode(fmi3Instance i, fmi3Boolean tolerant, double tolerance, double start,
        fmi3Boolean stops, double stop) {
    ((Instance *)i)->m.time = start;
    return fmi3OK;
}

fmi3Status fmi3ExitInitializationMode(fmi3Instance i) { return fmi3OK; }
fmi3Status fmi3EnterEventMode(fmi3Instance i) { return fmi3OK; }
fmi3Status fmi3EnterContinuousTimeMode(fmi3Instance i) { return fmi3OK; }
fmi3Status fmi3EnterStepMode(fmi3Instance i) { return fmi3OK; }
fmi3Status fmi3Terminate(fmi3Instance i) { return fmi3OK; }

fmi3Status fmi3UpdateDiscreteStates(fmi3Instance i, fmi3Boolean *again, fmi3Boolean *terminate,
        fmi3Boolean *nominals, fmi3Boolean *states, fmi3Boolean *timed, double *next) {
    *again = *terminate = *nominals = *states = *timed = false;
    return fmi3OK;
}

fmi3Status fmi3CompletedIntegratorStep(fmi3Instance i, fmi3Boolean no, fmi3Boolean *event, fmi3Boolean *end) {
    *event = *end = false;
    return fmi3OK;
}

fmi3Status fmi3GetFloat64(fmi3Instance i, const fmi3ValueReference r[], size_t n, double values[], size_t nv) {
    Instance *s = i;
    double dx[N];
    for (size_t a = 0, at = 0, size; a < n; a++, at += size) {
        double *from = place(s, r[a], &size);
        if (r[a] == DX) {
            if (derivatives(s, dx)) return fmi3Error;
            from = dx;
            size = N;
        } else if (r[a] == Y) {
            dx[0] = s->m.u * (s->m.x[0] + s->m.x[1] + s->m.x[2]);
            from = dx;
        }
        if (!from || at + size > nv) return fmi3Error;
        memcpy(values + at, from, size * sizeof(double));
    }
    return fmi3OK;
}

fmi3Status fmi3SetFloat64(fmi3Instance i, const fmi3ValueReference r[], size_t n, const double values[],
        size_t nv) {
    for (size_t a = 0, at = 0, size; a < n; a++, at += size) {
        double *to = place(i, r[a], &size);
        if (!to || at + size > nv) return fmi3Error;
        memcpy(to, values + at, size * sizeof(double));
    }
    return fmi3OK;
}

fmi3Status fmi3GetInt32(fmi3Instance i, const fmi3ValueReference r[], size_t n, fmi3Int32 values[], size_t nv) {
    values[0] = ((Instance *)i)->m.mode;
    return n == 1 && r[0] == MODE ? fmi3OK : fmi3Error;
}

fmi3Status fmi3SetInt32(fmi3Instance i, const fmi3ValueReference r[], size_t n, const fmi3Int32 values[],
        size_t nv) {
    ((Instance *)i)->m.mode = values[0];
    return n == 1 && r[0] == MODE ? fmi3OK : fmi3Error;
}

fmi3Status fmi3SetTime(fmi3Instance i, double time) {
    ((Instance *)i)->m.time = time;
    return fmi3OK;
}

fmi3Status fmi3SetContinuousStates(fmi3Instance i, const double x[], size_t n) {
    memcpy(((Instance *)i)->m.x, x, sizeof START.x);
    return fmi3OK;
}

fmi3Status fmi3GetContinuousStates(fmi3Instance i, double x[], size_t n) {
    memcpy(x, ((Instance *)i)->m.x, sizeof START.x);
    return fmi3OK;
}

fmi3Status fmi3GetContinuousStateDerivatives(fmi3Instance i, double dx[], size_t n) { return derivatives(i, dx); }

fmi3Status fmi3GetNominalsOfContinuousStates(fmi3Instance i, double x[], size_t n) {
    for (size_t j = 0; j < n; j++) x[j] = 1;
    return fmi3OK;
}

fmi3Status fmi3GetNumberOfContinuousStates(fmi3Instance i, size_t *n) {
    *n = N;
    return fmi3OK;
}

fmi3Status fmi3GetNumberOfEventIndicators(fmi3Instance i, size_t *n) {
    *n = 0;
    return fmi3OK;
}

fmi3Status fmi3GetEventIndicators(fmi3Instance i, double z[], size_t n) { return fmi3OK; }

/* Explicit Euler in steps of about 1 ms. */
fmi3Status fmi3DoStep(fmi3Instance i, double time, double length, fmi3Boolean no, fmi3Boolean *event,
        fmi3Boolean *terminate, fmi3Boolean *early, double *last) {
    Instance *s = i;
    double dx[N];
    int steps = (int)(length * 1000 + 0.5);
    if (steps < 1) steps = 1;
    for (int step = 0; step < steps; step++) {
        if (derivatives(s, dx)) return fmi3Error;
        for (int j = 0; j < N; j++) s->m.x[j] += length / steps * dx[j];
    }
    *event = *terminate = *early = false;
    *last = s->m.time = time + length;
    return fmi3OK;
}

fmi3Status fmi3GetFMUState(fmi3Instance i, fmi3FMUState *state) {
    if (!*state) *state = malloc(sizeof(Model));
    memcpy(*state, &((Instance *)i)->m, sizeof(Model));
    return fmi3OK;
}

fmi3Status fmi3SetFMUState(fmi3Instance i, fmi3FMUState state) {
    memcpy(&((Instance *)i)->m, state, sizeof(Model));
    return fmi3OK;
}

fmi3Status fmi3FreeFMUState(fmi3Instance i, fmi3FMUState *state) {
    free(*state);
    *state = NULL;
    return fmi3OK;
}

fmi3Status fmi3SerializedFMUStateSize(fmi3Instance i, fmi3FMUState state, size_t *size) {
    *size = sizeof(Model);
    return fmi3OK;
}

fmi3Status fmi3SerializeFMUState(fmi3Instance i, fmi3FMUState state, fmi3Byte bytes[], size_t size) {
    memcpy(bytes, state, sizeof(Model));
    return fmi3OK;
}

fmi3Status fmi3DeserializeFMUState(fmi3Instance i, const fmi3Byte bytes[], size_t size, fmi3FMUState *state) {
    if (size != sizeof(Model)) return fmi3Error;
    if (!*state) *state = malloc(sizeof(Model));
    memcpy(*state, bytes, sizeof(Model));
    return fmi3OK;
}
