/* The functions of CUDA's driver that the exchange of memory calls, with memory of malloc. They have the
   parameters of cuda.h, so that a call with others fails or returns nonsense. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef void *CUcontext, *CUstream;

static int context, current;
static struct { CUdeviceptr base; size_t size; int opened; } buffers[64];

static int find(CUdeviceptr address) {
    for (int i = 0; i < 64; i++)
        if (buffers[i].base && address >= buffers[i].base && address < buffers[i].base + buffers[i].size) return i;
    return -1;
}

CUresult cuInit(unsigned flags) { return flags ? 1 : 0; }
CUresult cuDeviceGet(CUdevice *device, int number) { *device = 40 + number; return 0; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    if (device != 40) return 101;
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(16 * i);
    return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    *made = &context;
    return device == 40 ? 0 : 101;
}
CUresult cuCtxSetCurrent(CUcontext given) { current = given == &context; return current ? 0 : 201; }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1 << 20; *total = 1 << 30; return current ? 0 : 201; }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t nbytes) {
    if (nbytes > 1 << 20) return 2;
    for (int i = 0; i < 64; i++) {
        if (buffers[i].base) continue;
        buffers[i].base = *address = (CUdeviceptr)malloc(nbytes);
        buffers[i].size = nbytes;
        return 0;
    }
    return 2;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    int i = find(address);
    if (i < 0 || buffers[i].base != address || buffers[i].opened) return 1;
    free((void *)address);
    buffers[i].base = 0;
    return 0;
}
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    memset(handle, 7, sizeof *handle);
    memcpy(handle->reserved + 8, &address, sizeof address);
    return find(address) < 0;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    if (flags != 1 || handle.reserved[0] != 7 || handle.reserved[63] != 7) return 1;
    memcpy(address, handle.reserved + 8, sizeof *address);
    int i = find(*address);
    if (i < 0) return 400;
    buffers[i].opened++;
    return 0;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    int i = find(address);
    return i < 0 || buffers[i].opened-- < 1;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    int i = find(address);
    if (i < 0) return 1;
    *base = buffers[i].base;
    *size = buffers[i].size;
    return 0;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
    if ((uintptr_t)stream != 0x7f0000000011) return 400;
    memmove((void *)target, (void *)source, nbytes);
    return 0;
}
CUresult cuStreamSynchronize(CUstream stream) { return (uintptr_t)stream == 0x7f0000000011 ? 0 : 400; }
CUresult cuGetErrorString(CUresult status, const char **text) {
    *text = status == 2 ? "out of memory" : "invalid";
    return 0;
}
