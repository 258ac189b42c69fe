/* A ball that bounces: h' = v, v' = -9.81, and v becomes -e v at the ground (a state event); at the time `kick` it
   gets 1 m/s more (a time event). FMI 2, model exchange. */

#include <stdlib.h>
#include <string.h>

#include "fmi2Functions.h"

enum { TIME, H, DH, V, DV, E, KICK };

typedef struct {
    double v[7];
    int kicked;
} Model;

static const Model START = {{0, 1, 0, 0, -9.81, 0.7, 100}, 0};

const char *fmi2GetTypesPlatform(void) { return "default"; }
const char *fmi2GetVersion(void) { return "2.0"; }

fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
        const fmi2CallbackFunctions *callbacks, fmi2Boolean visible, fmi2Boolean logging) {
    Model *m = malloc(sizeof *m);
    *m = START;
    return m;
}

void fmi2FreeInstance(fmi2Component c) { free(c); }

fmi2Status fmi2Reset(fmi2Component c) {
    *(Model *)c = START;
    return fmi2OK;
}

fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean a, fmi2Real b, fmi2Real start, fmi2Boolean d, fmi2Real e) {
    ((Model *)c)->v[TIME] = start;
    return fmi2OK;
}

fmi2Status fmi2EnterInitializationMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2ExitInitializationMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2EnterEventMode(fmi2Component c) { return fmi2OK; }
fmi2Status fmi2EnterContinuousTimeMode(fmi2Component c) { return fmi2OK; }

fmi2Status fmi2NewDiscreteStates(fmi2Component c, fmi2EventInfo *e) {
    Model *m = c;
    memset(e, 0, sizeof *e);
    if (m->v[H] <= 0 && m->v[V] < 0) {
        m->v[H] = 0;
        m->v[V] *= -m->v[E];
        e->valuesOfContinuousStatesChanged = fmi2True;
    }
    if (!m->kicked && m->v[TIME] >= m->v[KICK]) {
        m->kicked = 1;
        m->v[V] += 1;
        e->valuesOfContinuousStatesChanged = fmi2True;
    }
    e->nextEventTimeDefined = !m->kicked;
    e->nextEventTime = m->v[KICK];
    return fmi2OK;
}

fmi2Status fmi2CompletedIntegratorStep(fmi2Component c, fmi2Boolean no, fmi2Boolean *event, fmi2Boolean *end) {
    *event = *end = fmi2False;
    return fmi2OK;
}

fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2Real value[]) {
    Model *m = c;
    m->v[DH] = m->v[V];
    for (size_t i = 0; i < n; i++) value[i] = m->v[r[i]];
    return fmi2OK;
}

fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Real value[]) {
    for (size_t i = 0; i < n; i++) ((Model *)c)->v[r[i]] = value[i];
    return fmi2OK;
}

fmi2Status fmi2SetTime(fmi2Component c, fmi2Real time) {
    ((Model *)c)->v[TIME] = time;
    return fmi2OK;
}

fmi2Status fmi2SetContinuousStates(fmi2Component c, const fmi2Real x[], size_t n) {
    ((Model *)c)->v[H] = x[0];
    ((Model *)c)->v[V] = x[1];
    return fmi2OK;
}

fmi2Status fmi2GetContinuousStates(fmi2Component c, fmi2Real x[], size_t n) {
    x[0] = ((Model *)c)->v[H];
    x[1] = ((Model *)c)->v[V];
    return fmi2OK;
}

fmi2Status fmi2GetDerivatives(fmi2Component c, fmi2Real dx[], size_t n) {
    dx[0] = ((Model *)c)->v[V];
    dx[1] = ((Model *)c)->v[DV];
    return fmi2OK;
}

fmi2Status fmi2GetEventIndicators(fmi2Component c, fmi2Real z[], size_t n) {
    z[0] = ((Model *)c)->v[H];
    return fmi2OK;
}
