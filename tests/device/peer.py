"""The peer's packages on the fake GPU: its calls of CUDA become those of `FakeDevice`."""

import ctypes


def install_for_peer(device, replace=setattr):
    """Let the peer's transport of arrays on a GPU work with a fake device."""
    from tesseract_core.runtime.cuda import api

    from device.fake import UUID

    def open_handle(handle):
        return device.open(handle)[0]

    def handle_of(address):
        if address not in device.allocations:  # memory of an array, which has no handle
            raise RuntimeError("invalid argument")
        return device.export(address)

    def copy(target, source, nbytes):
        ctypes.memmove(target, source, nbytes)

    functions = {
        "set_device": lambda number: None,
        "get_device": lambda: 0,
        "device_count": lambda: 1,
        "device_uuid": lambda number: UUID,
        "device_total_memory": lambda number: device.total_bytes,
        "malloc": device.allocate,
        "free": device.free,
        "memcpy_device_to_device": copy,
        "memcpy_host_to_device": copy,
        "memcpy_device_to_host": copy,
        "device_synchronize": lambda: None,
        "ipc_get_mem_handle": handle_of,
        "ipc_open_mem_handle": open_handle,
        "ipc_close_mem_handle": device.close,
        "get_allocation_base": lambda address: (address, 0),
    }
    for name, function in functions.items():
        replace(api, name, function)
