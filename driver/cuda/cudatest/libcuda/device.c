/* Devices: their number, names, UUIDs and attributes. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int device_count;
struct device devices[MAX_DEVICES];

static int hex(char c) {
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* parse_uuid reads the n-th UUID of a comma-separated list. */
static bool parse_uuid(const char *list, int n, uint8_t out[16]) {
	while (list && n-- > 0)
		list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
	int digits = 0;
	for (; list && *list && *list != ',' && digits < 32; list++) {
		int v = hex(*list);
		if (v < 0)
			continue;
		out[digits / 2] = (uint8_t)(digits % 2 ? out[digits / 2] | v : v << 4);
		digits++;
	}
	return digits == 32;
}

static void make_device(struct device *d, int physical) {
	memset(d, 0, sizeof *d);
	d->physical = physical;
	const char *mem = env_get("FAKECUDA_MEMORY");
	d->total = mem ? strtoull(mem, NULL, 0) : 1ull << 30;
	snprintf((char *)d->gpu_uuid, 16, "fakecuda gpu %02u", (unsigned)physical % 100);
	if (parse_uuid(env_get("FAKECUDA_UUIDS"), physical, d->uuid))
		memcpy(d->gpu_uuid, d->uuid, 16);
	memcpy(d->uuid, d->gpu_uuid, 16);
	if (env_is("FAKECUDA_MIG", "1"))
		d->uuid[0] ^= 0x80;
}

CUresult devices_init(void) {
	const char *env = env_get("FAKECUDA_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
	int physical = env ? atoi(env) : 1;
	if (physical > MAX_DEVICES)
		physical = MAX_DEVICES;
	for (int i = 0; i < physical; i++)
		make_device(&devices[i], i);
	device_count = physical;
	if (visible) {
		struct device all[MAX_DEVICES];
		int numbers[MAX_DEVICES];
		memcpy(all, devices, sizeof all);
		device_count = visible_devices(visible, all, physical, numbers, MAX_DEVICES);
		for (int i = 0; i < device_count; i++)
			devices[i] = all[numbers[i]];
	}
	return device_count ? OK : NO_DEVICE;
}

int device_by_uuid(const uint8_t uuid[16]) {
	for (int i = 0; i < device_count; i++)
		if (memcmp(devices[i].uuid, uuid, 16) == 0)
			return i;
	return -1;
}

static bool bad(int dev) { return dev < 0 || dev >= device_count; }

static CUresult get(int *out, int ordinal) {
	if (!out)
		return INVALID_VALUE;
	if (bad(ordinal))
		return INVALID_DEVICE;
	*out = ordinal;
	return OK;
}
API(cuDeviceGet, (int *dev, int ordinal), get(dev, ordinal))

static CUresult count(int *n) { return n ? (*n = device_count, OK) : INVALID_VALUE; }
API(cuDeviceGetCount, (int *n), count(n))

static CUresult name(char *out, int len, int dev) {
	if (bad(dev))
		return INVALID_DEVICE;
	if (!out || len <= 0)
		return INVALID_VALUE;
	snprintf(out, (size_t)len, "Fake GPU %d", devices[dev].physical);
	return OK;
}
API(cuDeviceGetName, (char *out, int len, int dev), name(out, len, dev))

static CUresult uuid(uint8_t *out, int dev, bool instance) {
	if (bad(dev))
		return INVALID_DEVICE;
	if (!out)
		return INVALID_VALUE;
	memcpy(out, instance ? devices[dev].uuid : devices[dev].gpu_uuid, 16);
	return OK;
}
API(cuDeviceGetUuid, (uint8_t *out, int dev), uuid(out, dev, false))
API(cuDeviceGetUuid_v2, (uint8_t *out, int dev), uuid(out, dev, true))

static CUresult total(size_t *out, int dev) {
	if (bad(dev))
		return INVALID_DEVICE;
	return out ? (*out = devices[dev].total, OK) : INVALID_VALUE;
}
API(cuDeviceTotalMem_v2, (size_t *out, int dev), total(out, dev))

static CUresult bus_id(char *out, int len, int dev) {
	if (bad(dev))
		return INVALID_DEVICE;
	if (!out || len < 13)
		return INVALID_VALUE;
	snprintf(out, (size_t)len, "0000:%02X:00.0", (devices[dev].physical + 1) & 0xff);
	return OK;
}
API(cuDeviceGetPCIBusId, (char *out, int len, int dev), bus_id(out, len, dev))

static CUresult by_bus_id(int *dev, const char *id) {
	unsigned domain, bus;
	if (!dev || !id || sscanf(id, "%x:%x", &domain, &bus) != 2)
		return INVALID_VALUE;
	for (int i = 0; i < device_count; i++)
		if (domain == 0 && (int)bus == devices[i].physical + 1)
			return *dev = i, OK;
	return INVALID_DEVICE;
}
API(cuDeviceGetByPCIBusId, (int *dev, const char *id), by_bus_id(dev, id))

static CUresult attribute(int *out, int attr, int dev) {
	static const struct { int attr, value; } fixed[] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
		{11, 2147483647}, {12, 65536}, {13, 1980000}, {14, 512}, {15, 1}, {16, 8}, {19, 1}, {31, 1}, {34, 0}, {36, 3201000}, {37, 6144},
		{38, 52428800}, {39, 2048}, {40, 3}, {41, 1}, {75, 9}, {76, 0}, {78, 1}, {81, 233472}, {82, 65536}, {90, 1}, {91, 1}, {92, 1}, {93, 1},
		{94, 0}, {95, 1}, {97, 232448}, {99, 1}, {106, 32}, {120, 1}, {122, 1}, {123, 1},
	};
	if (bad(dev))
		return INVALID_DEVICE;
	if (!out || attr <= 0 || attr > 161)
		return INVALID_VALUE;
	*out = 0;
	switch (attr) {
	case 33: *out = devices[dev].physical + 1; return OK;
	case 83: *out = !lacks("managed"); return OK;
	case 89: *out = !lacks("managed") && !lacks("concurrent"); return OK;
	case 132: *out = !lacks("multicast"); return OK;
	case 102: *out = !lacks("vmm"); return OK;
	case 103: *out = !lacks("vmm") && !lacks("fd"); return OK;
	case 134: *out = 0; return OK;
	case 141: case 142: case 144: *out = !lacks("pool"); return OK;
	case 115: *out = !lacks("pool"); return OK;
	case 119: *out = lacks("pool") ? 0 : 1; return OK;
	case 125: *out = 1; return OK;
	case 113: *out = !lacks("rohost"); return OK;
	case 128: *out = env_is("FAKECUDA_FABRIC", "1") || env_is("FAKECUDA_FABRIC", "noimex"); return OK;
	}
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		if (fixed[i].attr == attr)
			*out = fixed[i].value;
	return OK;
}
API(cuDeviceGetAttribute, (int *out, int attr, int dev), attribute(out, attr, dev))

static CUresult can_peer(int *out, int dev, int peer) {
	if (bad(dev) || bad(peer))
		return INVALID_DEVICE;
	return out ? (*out = dev != peer && !lacks("p2p"), OK) : INVALID_VALUE;
}
API(cuDeviceCanAccessPeer, (int *out, int dev, int peer), can_peer(out, dev, peer))

static CUresult p2p_attribute(int *out, int attr, int src, int dst) {
	if (bad(src) || bad(dst) || src == dst)
		return INVALID_DEVICE;
	if (!out || attr < 1 || attr > 4)
		return INVALID_VALUE;
	*out = attr != 1 && !lacks("p2p");
	return OK;
}
API(cuDeviceGetP2PAttribute, (int *out, int attr, int src, int dst), p2p_attribute(out, attr, src, dst))

EXPORT CUresult cuDriverGetVersion(int *v);
EXPORT CUresult cuDriverGetVersion(int *v) {
	const char *env = env_get("FAKECUDA_DRIVER_VERSION");
	return v ? (*v = env ? atoi(env) : 13000, OK) : INVALID_VALUE;
}
