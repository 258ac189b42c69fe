/* Failure rates of chips from their temperatures: Arrhenius' law.
 *
 * usage: reliability INPUT.json OUTPUT.json
 * reads  {"temperatures": [...]}   in kelvin
 * writes {"rates": [...]}          failures per million hours
 *
 * An ordinary program: it knows nothing of derivatives, of Python or of Chainrule.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHIPS 1024
#define BOLTZMANN 8.617333e-5 /* eV/K */
#define ACTIVATION 0.7        /* eV */
#define REFERENCE 328.15      /* K: 55 degrees Celsius */
#define BASE_RATE 10.0        /* failures per million hours at the reference */

static char *read_file(const char *name) {
    FILE *file = fopen(name, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) return NULL;
    text[size] = '\0';
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s INPUT.json OUTPUT.json\n", argv[0]);
        return 2;
    }
    char *text = read_file(argv[1]);
    char *at = text ? strstr(text, "\"temperatures\"") : NULL;
    at = at ? strchr(at, '[') : NULL;
    if (!at) {
        fprintf(stderr, "%s: no \"temperatures\" list\n", argv[1]);
        return 1;
    }
    double kelvin[MAX_CHIPS];
    int count = 0;
    for (at++; *at && *at != ']' && count < MAX_CHIPS; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at) continue;
        if (!(value > 0)) {
            fprintf(stderr, "chip %d: %g K is below absolute zero\n", count, value);
            return 1;
        }
        kelvin[count++] = value;
        at = end - 1;
    }
    FILE *out = fopen(argv[2], "w");
    if (!out) {
        perror(argv[2]);
        return 1;
    }
    fprintf(out, "{\"rates\": [");
    for (int i = 0; i < count; i++) {
        double exponent = ACTIVATION / BOLTZMANN * (1 / REFERENCE - 1 / kelvin[i]);
        fprintf(out, "%s%.17g", i ? ", " : "", BASE_RATE * exp(exponent));
    }
    fprintf(out, "]}\n");
    return fclose(out) != 0;
}
