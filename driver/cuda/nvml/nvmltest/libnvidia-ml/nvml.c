/* A stand-in for libnvidia-ml.so.1. Its state comes from environment variables, which nvmltest.Options sets:
 *   FAKENVML_DEVICES    number of GPUs (1)
 *   FAKENVML_UUIDS      their UUIDs, separated by commas
 *   FAKENVML_MEMORY     bytes of each (64 GiB)
 *   FAKENVML_PROCESSES  a file with a line for each process: device pid bytes uses, where bytes may be -1 for unknown and uses is
 *                       a set of the letters C, G and M
 *   FAKENVML_MIG        1 divides each GPU into two MIG devices
 *   FAKENVML_FAIL       function=code, separated by commas: the function fails with code. function@1=code is for GPU 1 only,
 *                       and *@1=code for all functions that take GPU 1 or its MIG devices
 * The types are those of NVML's interface. With -DFAKENVML_OLD, the library lacks functions that drivers before 470 lack. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define MAX 8

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

struct device {
	int index, mig; /* mig is -1 for a GPU, and the number of the MIG device otherwise */
};
static struct device gpus[MAX], parts[MAX][2];
static int uses;

static const char *env(const char *name, const char *otherwise) {
	const char *v = getenv(name);
	return v && *v ? v : otherwise;
}

static int count(void) {
	int n = atoi(env("FAKENVML_DEVICES", "1"));
	return n < 0 ? 0 : n > MAX ? MAX : n;
}

static bool mig(void) { return strcmp(env("FAKENVML_MIG", ""), "1") == 0; }

/* failing_on returns the code with which a function must fail on a GPU, or OK. index is -1 for no GPU. */
static int failing_on(const char *function, int index) {
	size_t n = strlen(function);
	for (const char *f = env("FAKENVML_FAIL", ""); f && *f; f = strchr(f, ',') ? strchr(f, ',') + 1 : NULL) {
		const char *rest;
		if (strncmp(f, function, n) == 0 && (f[n] == '=' || f[n] == '@'))
			rest = f + n;
		else if (f[0] == '*' && f[1] == '@')
			rest = f + 1;
		else
			continue;
		if (*rest == '@') {
			char *end;
			if (strtol(rest + 1, &end, 10) != index)
				continue;
			rest = end;
		}
		if (*rest == '=')
			return atoi(rest + 1);
	}
	return OK;
}
static int failing(const char *function) { return failing_on(function, -1); }

/* check validates a device, and returns the code of a failing function. */
static int check(const struct device *d, const char *function) {
	if (!uses)
		return UNINITIALIZED;
	if (!d)
		return INVALID_ARGUMENT;
	bool known = d >= gpus && d < gpus + MAX;
	known |= d >= &parts[0][0] && d < &parts[0][0] + 2 * MAX;
	return known ? failing_on(function, d->index) : INVALID_ARGUMENT;
}
#define CHECK(d)                                                                                                                   \
	do {                                                                                                                       \
		int code = check(d, __func__);                                                                                     \
		if (code)                                                                                                          \
			return code;                                                                                               \
	} while (0)

static int put(char *out, unsigned length, const char *text) {
	if (!out)
		return INVALID_ARGUMENT;
	if (strlen(text) + 1 > length)
		return INSUFFICIENT_SIZE;
	strcpy(out, text);
	return OK;
}

API int nvmlInitWithFlags(unsigned flags) {
	if (flags & ~7u)
		return INVALID_ARGUMENT;
	int code = failing(__func__);
	if (code)
		return code;
	for (int i = 0; i < MAX; i++) {
		gpus[i] = (struct device){i, -1};
		parts[i][0] = (struct device){i, 0};
		parts[i][1] = (struct device){i, 1};
	}
	__atomic_add_fetch(&uses, 1, __ATOMIC_SEQ_CST);
	return OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
	if (!uses)
		return UNINITIALIZED;
	int code = failing(__func__);
	if (code)
		return code;
	__atomic_sub_fetch(&uses, 1, __ATOMIC_SEQ_CST);
	return OK;
}
/* fakenvmlUses returns the number of uses that have not ended. */
API int fakenvmlUses(void) { return uses; }

API const char *nvmlErrorString(int code) { return code == OK ? "Success" : "Failure"; }
API int nvmlSystemGetDriverVersion(char *out, unsigned length) { return uses ? put(out, length, "580.65.06") : UNINITIALIZED; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
	*version = 13000;
	return uses ? OK : UNINITIALIZED;
}
API int nvmlDeviceGetCount_v2(unsigned *n) {
	*n = count();
	return uses ? failing(__func__) : UNINITIALIZED;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct device **d) {
	if (!uses)
		return UNINITIALIZED;
	if ((int)i >= count())
		return INVALID_ARGUMENT;
	*d = &gpus[i];
	return failing_on(__func__, i);
}
API int nvmlDeviceGetIndex(struct device *d, unsigned *i) {
	CHECK(d);
	*i = d->mig < 0 ? d->index : d->mig;
	return OK;
}

API int nvmlDeviceGetUUID(struct device *d, char *out, unsigned length) {
	CHECK(d);
	char text[96];
	if (d->mig >= 0) {
		snprintf(text, sizeof text, "MIG-00000000-0000-0000-%04d-%012d", d->index, d->mig);
		return put(out, length, text);
	}
	snprintf(text, sizeof text, "GPU-00000000-0000-0000-0000-%012d", d->index);
	const char *list = env("FAKENVML_UUIDS", "");
	for (int i = 0; i < d->index && list; i++)
		if ((list = strchr(list, ',')))
			list++;
	if (list && *list)
		snprintf(text, sizeof text, "%.*s", (int)strcspn(list, ","), list);
	return put(out, length, text);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **d) {
	char text[96];
	if (!uses)
		return UNINITIALIZED;
	for (int i = 0; i < count(); i++)
		for (int k = -1; k < (mig() ? 2 : 0); k++) {
			struct device *candidate = k < 0 ? &gpus[i] : &parts[i][k];
			if (nvmlDeviceGetUUID(candidate, text, sizeof text) == OK && strcmp(text, uuid) == 0) {
				*d = candidate;
				return OK;
			}
		}
	return NOT_FOUND;
}
API int nvmlDeviceGetName(struct device *d, char *out, unsigned length) {
	CHECK(d);
	return put(out, length, "Fake GPU");
}

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};
API int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *p) {
	CHECK(d);
	memset(p, 0, sizeof *p);
	p->bus = d->index + 1;
	snprintf(p->address, sizeof p->address, "00000000:%02X:00.0", p->bus + 0x3A);
	return OK;
}

/* Processes. */
struct process {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
};

/* processes stores those of a device that have a letter of uses, and returns their number and memory. */
static int processes(const struct device *d, char letter, struct process *out, unsigned room, unsigned *n, uint64_t *used) {
	*n = 0;
	FILE *f = fopen(env("FAKENVML_PROCESSES", "/dev/null"), "r");
	if (!f)
		return OK;
	int device;
	unsigned pid;
	long long bytes;
	char kinds[8];
	int line = 0;
	while (fscanf(f, "%d %u %lld %7s", &device, &pid, &bytes, kinds) == 4) {
		int part = mig() ? line % 2 : -1;
		line++;
		if (device != d->index || (letter && !strchr(kinds, letter)) || (d->mig >= 0 && part != d->mig))
			continue;
		if (used && bytes > 0)
			*used += bytes;
		if (out && *n < room)
			out[*n] = (struct process){pid, bytes, part, part < 0 ? -1 : 0};
		++*n;
	}
	fclose(f);
	return OK;
}
static int listed(const struct device *d, char letter, unsigned *n, struct process *out) {
	unsigned room = *n;
	int code = processes(d, letter, out, room, n, NULL);
	return code ? code : *n > room ? INSUFFICIENT_SIZE : OK;
}
#ifndef FAKENVML_OLD
API int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *n, struct process *out) {
	CHECK(d);
	return listed(d, 'C', n, out);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *d, unsigned *n, struct process *out) {
	CHECK(d);
	return listed(d, 'G', n, out);
}
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *d, unsigned *n, struct process *out) {
	CHECK(d);
	return listed(d, 'M', n, out);
}
#else
API int nvmlDeviceGetComputeRunningProcesses_v2(struct device *d, unsigned *n, struct process *out) {
	CHECK(d);
	return listed(d, 'C', n, out);
}
#endif

/* Memory and sensors. */
struct memory {
	unsigned long long total, free, used;
};
API int nvmlDeviceGetMemoryInfo(struct device *d, struct memory *m) {
	CHECK(d);
	unsigned n;
	uint64_t used = 0;
	processes(d, 0, NULL, 0, &n, &used);
	m->total = strtoull(env("FAKENVML_MEMORY", "68719476736"), NULL, 10) / (d->mig < 0 ? 1 : 2);
	m->used = used;
	m->free = m->total - used;
	return OK;
}
#ifndef FAKENVML_OLD
struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};
API int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory_v2 *m) {
	CHECK(d);
	if (m->version != (sizeof *m | 2u << 24))
		return VERSION_MISMATCH;
	struct memory old;
	nvmlDeviceGetMemoryInfo(d, &old);
	m->total = old.total;
	m->reserved = 1 << 20;
	m->used = old.used;
	m->free = old.free - m->reserved;
	return OK;
}
struct temperature {
	unsigned version, sensor;
	int degrees;
};
API int nvmlDeviceGetTemperatureV(struct device *d, struct temperature *t) {
	CHECK(d);
	if (t->version != (sizeof *t | 1u << 24))
		return VERSION_MISMATCH;
	t->degrees = 40 + d->index;
	return d->mig < 0 ? OK : NOT_SUPPORTED;
}
#endif
API int nvmlDeviceGetTemperature(struct device *d, int sensor, unsigned *degrees) {
	CHECK(d);
	*degrees = 40 + d->index;
	return d->mig < 0 && sensor == 0 ? OK : NOT_SUPPORTED;
}
API int nvmlDeviceGetUtilizationRates(struct device *d, unsigned out[2]) {
	CHECK(d);
	out[0] = 73, out[1] = 12;
	return d->mig < 0 ? OK : NOT_SUPPORTED;
}
API int nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts) {
	CHECK(d);
	*milliwatts = 312500;
	return d->mig < 0 ? OK : NOT_SUPPORTED;
}
API int nvmlDeviceGetEnforcedPowerLimit(struct device *d, unsigned *milliwatts) {
	CHECK(d);
	*milliwatts = 700000;
	return OK;
}

/* NVLink: each GPU has three links; the last is down. */
API int nvmlDeviceGetNvLinkState(struct device *d, unsigned link, int *active) {
	CHECK(d);
	if (link >= 3)
		return INVALID_ARGUMENT;
	*active = link < 2;
	return OK;
}
API int nvmlDeviceGetNvLinkVersion(struct device *d, unsigned link, unsigned *version) {
	CHECK(d);
	*version = 4;
	return link < 3 ? OK : INVALID_ARGUMENT;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *d, unsigned link, struct pci *p) {
	CHECK(d);
	return link < 2 ? nvmlDeviceGetPciInfo_v3(&gpus[(d->index + 1) % MAX], p) : NOT_SUPPORTED;
}

/* MIG: two devices for each GPU, in a table of seven. */
API int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending) {
	CHECK(d);
	*current = *pending = mig();
	return OK;
}
API int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *n) {
	CHECK(d);
	*n = 7;
	return OK;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned i, struct device **out) {
	CHECK(d);
	if (!mig() || i % 2 || i > 2)
		return NOT_FOUND;
	*out = &parts[d->index][i / 2];
	return OK;
}
API int nvmlDeviceGetGpuInstanceId(struct device *d, unsigned *id) {
	CHECK(d);
	*id = d->mig;
	return d->mig < 0 ? NOT_SUPPORTED : OK;
}
API int nvmlDeviceGetComputeInstanceId(struct device *d, unsigned *id) {
	CHECK(d);
	*id = 0;
	return d->mig < 0 ? NOT_SUPPORTED : OK;
}
