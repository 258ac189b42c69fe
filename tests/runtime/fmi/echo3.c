/* y = u for every type of FMI 3, in the manner of the reference FMU Feedthrough. An FMU for co-simulation.
   Variables of a type have the references 2k (input) and 2k + 1 (output); arrays have two elements. */

#include <stdlib.h>
#include <string.h>

#include "fmi3Functions.h"

#define TYPES(X) X(Float64) X(Float32) X(Int8) X(UInt8) X(Int16) X(UInt16) X(Int32) X(UInt32) X(Int64) X(UInt64) X(Boolean)
#define SIZE 64

typedef struct {
#define MEMBER(T) fmi3##T v##T[SIZE];
    TYPES(MEMBER)
    char text[SIZE];
} Instance;

const char *fmi3GetVersion(void) { return "3.0"; }

fmi3Instance fmi3InstantiateCoSimulation(fmi3String name, fmi3String token, fmi3String resources,
        fmi3Boolean visible, fmi3Boolean logging, fmi3Boolean events, fmi3Boolean early,
        const fmi3ValueReference intermediate[], size_t n, fmi3InstanceEnvironment e,
        fmi3LogMessageCallback log, fmi3IntermediateUpdateCallback update) {
    return calloc(1, sizeof(Instance));
}

void fmi3FreeInstance(fmi3Instance i) { free(i); }

fmi3Status fmi3Reset(fmi3Instance i) {
    memset(i, 0, sizeof(Instance));
    return fmi3OK;
}

fmi3Status fmi3EnterInitializationMode(fmi3Instance i, fmi3Boolean tolerant, double tolerance, double start,
        fmi3Boolean stops, double stop) { return fmi3OK; }
fmi3Status fmi3ExitInitializationMode(fmi3Instance i) { return fmi3OK; }
fmi3Status fmi3Terminate(fmi3Instance i) { return fmi3OK; }

/* Every second reference is an array of two; those of input and output lead to the same memory. */
static size_t width(fmi3ValueReference r) { return r / 2 % 2 ? 2 : 1; }

#define ACCESS(T)                                                                                             \
    fmi3Status fmi3Get##T(fmi3Instance i, const fmi3ValueReference r[], size_t n, fmi3##T v[], size_t nv) {    \
        size_t at = 0;                                                                                        \
        for (size_t a = 0; a < n; at += width(r[a++]))                                                        \
            memcpy(v + at, ((Instance *)i)->v##T + r[a] / 2 * 2 % SIZE, width(r[a]) * sizeof *v);              \
        return at == nv ? fmi3OK : fmi3Error;                                                                 \
    }                                                                                                         \
    fmi3Status fmi3Set##T(fmi3Instance i, const fmi3ValueReference r[], size_t n, const fmi3##T v[],           \
            size_t nv) {                                                                                      \
        size_t at = 0;                                                                                        \
        for (size_t a = 0; a < n; at += width(r[a++]))                                                        \
            memcpy(((Instance *)i)->v##T + r[a] / 2 * 2 % SIZE, v + at, width(r[a]) * sizeof *v);              \
        return at == nv ? fmi3OK : fmi3Error;                                                                 \
    }
TYPES(ACCESS)

fmi3Status fmi3GetString(fmi3Instance i, const fmi3ValueReference r[], size_t n, fmi3String v[], size_t nv) {
    v[0] = ((Instance *)i)->text;
    return n == 1 && nv == 1 ? fmi3OK : fmi3Error;
}

fmi3Status fmi3SetString(fmi3Instance i, const fmi3ValueReference r[], size_t n, const fmi3String v[],
        size_t nv) {
    strncpy(((Instance *)i)->text, v[0], SIZE - 1);
    return n == 1 && nv == 1 ? fmi3OK : fmi3Error;
}

fmi3Status fmi3DoStep(fmi3Instance i, double time, double length, fmi3Boolean no, fmi3Boolean *event,
        fmi3Boolean *terminate, fmi3Boolean *early, double *last) {
    *event = *terminate = *early = false;
    *last = time + length;
    return fmi3OK;
}
