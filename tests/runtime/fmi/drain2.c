/* A tank that drains: x' = -k x² + g u, y = x u. FMI 2, model exchange and co-simulation. Directional derivatives
   are by the state and the input, as the standard asks, and not by parameters. */

#include <stdlib.h>
#include <string.h>

#include "fmi2Functions.h"

enum { TIME, X, DX, U, K, G, Y };
enum { MODE, LEVELS };

typedef struct {
    double v[7];
    int mode, level, doubled;
    char label[64];
} Model;

typedef struct {
    Model m;
    const fmi2CallbackFunctions *callbacks;
    fmi2Boolean logging;
} Instance;

static const Model START = {{0, 2, 0, 1, 0.1, 3, 0}, 0, 1, 0, "plain"};

static fmi2Status update(Instance *s) {
    double *v = s->m.v;
    if (s->m.mode == 2) abort();
    if (s->m.mode == 1 || (s->m.mode == 3 && s->logging)) {
        s->callbacks->logger(s->callbacks->componentEnvironment, "drain", fmi2Error, "error", "the drain is blocked");
        return fmi2Error;
    }
    if (s->m.mode == 3) return fmi2Error;
    v[DX] = -v[K] * v[X] * v[X] + v[G] * v[U];
    v[Y] = v[X] * v[U] * (s->m.doubled ? 2 : 1) * s->m.level;
    return fmi2OK;
}

const char *fmi2GetTypesPlatform(void) { return "default"; }
const char *fmi2GetVersion(void) { return "2.0"; }

fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
        const fmi2CallbackFunctions *callbacks, fmi2Boolean visible, fmi2Boolean logging) {
    if (strcmp(guid, "{drain-2}")) return NULL;
    Instance *s = calloc(1, sizeof *s);
    s->m = START;
    s->callbacks = callbacks;
    s->logging = logging;
    return s;
}

void fmi2FreeInstance(fmi2Component c) { free(c); }

fmi2Status fmi2Reset(fmi2Component c) {
    ((Instance *)c)->m = START;
    return fmi2OK;
}

fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean a, fmi2Real b, fmi2Real start, fmi2Boolean d, fmi2Real e) {
    ((Instance *)c)->m.v[TIME] = start;
    return fmi2OK;
}

fmi2Status fmi2EnterInitializationMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2ExitInitializationMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2EnterEventMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2EnterContinuousTimeMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2Terminate(fmi2Component c) { return fmi2OK; }

fmi2Status fmi2NewDiscreteStates(fmi2Component c, fmi2EventInfo *e) {
    memset(e, 0, sizeof *e);
    return fmi2OK;
}

fmi2Status fmi2CompletedIntegratorStep(fmi2Component c, fmi2Boolean no, fmi2Boolean *event, fmi2Boolean *end) {
    *event = *end = fmi2False;
    return fmi2OK;
}

fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2Real value[]) {
    Instance *s = c;
    if (update(s)) return fmi2Error;
    for (size_t i = 0; i < n; i++) value[i] = s->m.v[r[i]];
    return fmi2OK;
}

fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Real value[]) {
    for (size_t i = 0; i < n; i++) ((Instance *)c)->m.v[r[i]] = value[i];
    return fmi2OK;
}

fmi2Status fmi2GetInteger(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2Integer value[]) {
    for (size_t i = 0; i < n; i++) value[i] = r[i] == MODE ? ((Instance *)c)->m.mode : ((Instance *)c)->m.level;
    return fmi2OK;
}

fmi2Status fmi2SetInteger(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Integer value[]) {
    for (size_t i = 0; i < n; i++) *(r[i] == MODE ? &((Instance *)c)->m.mode : &((Instance *)c)->m.level) = value[i];
    return fmi2OK;
}

fmi2Status fmi2GetBoolean(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2Boolean value[]) {
    value[0] = ((Instance *)c)->m.doubled;
    return fmi2OK;
}

fmi2Status fmi2SetBoolean(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Boolean value[]) {
    ((Instance *)c)->m.doubled = value[0];
    return fmi2OK;
}

fmi2Status fmi2GetString(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2String value[]) {
    for (size_t i = 0; i < n; i++) value[i] = ((Instance *)c)->m.label;
    return fmi2OK;
}

fmi2Status fmi2SetString(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2String value[]) {
    strncpy(((Instance *)c)->m.label, value[0], 63);
    return fmi2OK;
}

fmi2Status fmi2SetTime(fmi2Component c, fmi2Real time) {
    ((Instance *)c)->m.v[TIME] = time;
    return fmi2OK;
}

fmi2Status fmi2SetContinuousStates(fmi2Component c, const fmi2Real x[], size_t n) {
    ((Instance *)c)->m.v[X] = x[0];
    return fmi2OK;
}

fmi2Status fmi2GetContinuousStates(fmi2Component c, fmi2Real x[], size_t n) {
    x[0] = ((Instance *)c)->m.v[X];
    return fmi2OK;
}

fmi2Status fmi2GetDerivatives(fmi2Component c, fmi2Real dx[], size_t n) {
    Instance *s = c;
    if (update(s)) return fmi2Error;
    dx[0] = s->m.v[DX];
    return fmi2OK;
}

fmi2Status fmi2GetEventIndicators(fmi2Component c, fmi2Real z[], size_t n) { return fmi2OK; }

fmi2Status fmi2GetNominalsOfContinuousStates(fmi2Component c, fmi2Real x[], size_t n) {
    x[0] = 1;
    return fmi2OK;
}

fmi2Status fmi2GetDirectionalDerivative(fmi2Component c, const fmi2ValueReference unknowns[], size_t nu,
        const fmi2ValueReference knowns[], size_t nk, const fmi2Real seed[], fmi2Real out[]) {
    double *v = ((Instance *)c)->m.v;
    for (size_t i = 0; i < nu; i++) {
        out[i] = 0;
        for (size_t j = 0; j < nk; j++) {
            if (knowns[j] == K || knowns[j] == G) return fmi2Error;
            if (unknowns[i] == DX) out[i] += seed[j] * (knowns[j] == X ? -2 * v[K] * v[X] : v[G]);
            if (unknowns[i] == Y) out[i] += seed[j] * (knowns[j] == X ? v[U] : v[X]);
        }
    }
    return fmi2OK;
}

fmi2Status fmi2DoStep(fmi2Component c, fmi2Real time, fmi2Real length, fmi2Boolean no) {
    Instance *s = c;
    if (update(s)) return fmi2Error;
    for (int i = 0; i < 100; i++) {
        s->m.v[X] += length / 100 * s->m.v[DX];
        update(s);
    }
    s->m.v[TIME] = time + length;
    return fmi2OK;
}
