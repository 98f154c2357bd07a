"""Calls NVML wrongly in every way that its documentation gives a code for; prints the codes as JSON."""

import ctypes
import json

nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle, count, number = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
buffer, memory = ctypes.create_string_buffer(128), (ctypes.c_uint64 * 8)()
by_index, no_device = nvml.nvmlDeviceGetHandleByIndex_v2, ctypes.c_void_p(0x1234)
codes = {"before init": nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))}
codes["shutdown before init"] = nvml.nvmlShutdown()
codes["init"] = nvml.nvmlInit_v2()
codes["second init"] = nvml.nvmlInit_v2()
codes["first shutdown"] = nvml.nvmlShutdown()
codes["handle"] = by_index(0, ctypes.byref(handle))
codes["index too high"] = by_index(99, ctypes.byref(number))
codes["no place for the handle"] = by_index(0, None)
codes["no device"] = nvml.nvmlDeviceGetName(no_device, buffer, 128)
codes["null device"] = nvml.nvmlDeviceGetMemoryInfo(None, memory)
codes["null result"] = nvml.nvmlDeviceGetMemoryInfo(handle, None)
codes["buffer too small"] = nvml.nvmlDeviceGetUUID(handle, buffer, 10)
codes["unknown uuid"] = nvml.nvmlDeviceGetHandleByUUID(b"GPU-0", ctypes.byref(number))
codes["bus id that is none"] = nvml.nvmlDeviceGetHandleByPciBusId_v2(b"x", ctypes.byref(number))
memory[0] = 7
codes["structure of another version"] = nvml.nvmlDeviceGetMemoryInfo_v2(handle, memory)
codes["unknown clock"] = nvml.nvmlDeviceGetClockInfo(handle, 99, ctypes.byref(number))
codes["not provided"] = nvml.nvmlDeviceGetFanSpeed(handle, ctypes.byref(number))
codes["unknown process"] = nvml.nvmlSystemGetProcessName(1, buffer, 128)
codes["last shutdown"] = nvml.nvmlShutdown()
codes["after shutdown"] = nvml.nvmlDeviceGetName(handle, buffer, 128)
print(json.dumps(codes))
