/* The lock, the table of handles, the failure switch and the counters. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

__thread bool in_callback; /* the thread runs a host function, which must not call CUDA */
static _Atomic bool initialised;
static struct control private_control, *control = &private_control;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A handle is a slot index and a generation, so a released handle never becomes valid again. */
static struct slot { void *p; uint32_t gen; uint8_t type; } *slots;
static uint32_t nslots;

handle obj_add(void *p, enum type t) {
	uint32_t i = 0;
	while (i < nslots && slots[i].p)
		i++;
	if (i == nslots) {
		uint32_t n = nslots ? nslots * 2 : 64;
		slots = realloc(slots, n * sizeof *slots);
		if (!slots)
			abort();
		memset(slots + nslots, 0, (n - nslots) * sizeof *slots);
		nslots = n;
	}
	slots[i].p = p;
	slots[i].type = (uint8_t)t;
	slots[i].gen++;
	return 1ull << 46 | (uint64_t)(slots[i].gen & 0xffff) << 28 | (uint64_t)(i + 1) << 4;
}

static struct slot *slot_of(handle h) {
	uint32_t i = (uint32_t)(h >> 4 & 0xffffff);
	if (h >> 46 != 1 || h & 15 || i == 0 || i > nslots || !slots[i - 1].p || (slots[i - 1].gen & 0xffff) != (h >> 28 & 0xffff))
		return NULL;
	return &slots[i - 1];
}

void *obj_get(handle h, enum type t) {
	struct slot *s = slot_of(h);
	return s && s->type == t ? s->p : NULL;
}

void obj_del(handle h) {
	struct slot *s = slot_of(h);
	if (s)
		s->p = NULL;
}

void live_add(enum live kind, int64_t n) { control->live[kind] += n; }

void *zalloc(size_t n) {
	void *p = calloc(1, n ? n : 1);
	if (!p)
		abort();
	return p;
}

uint64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t random64(void) {
	uint64_t v = 0;
	if (getrandom(&v, sizeof v, 0) != sizeof v)
		v = now_ns();
	return v;
}

/* env_get treats an empty variable as unset. */
const char *env_get(const char *name) {
	const char *v = getenv(name);
	return v && *v ? v : NULL;
}

bool env_is(const char *name, const char *value) {
	const char *v = getenv(name);
	return v && strcmp(v, value) == 0;
}

bool lacks(const char *feature) {
	const char *v = env_get("FAKECUDA_NO");
	size_t n = strlen(feature);
	for (; v && *v; v = strchr(v, ',') ? strchr(v, ',') + 1 : v + strlen(v))
		if (strncmp(v, feature, n) == 0 && (v[n] == 0 || v[n] == ','))
			return true;
	return false;
}

static void setup(void) {
	const char *prefix = getenv("FAKECUDA_CONTROL");
	char path[4096];
	if (prefix) {
		snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
		int fd = open(path, O_RDWR | O_CLOEXEC);
		void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd >= 0)
			close(fd);
		if (p != MAP_FAILED)
			control = p;
	}
	checkpoint_init();
	memcpy(&control->magic, "FAKECUDA", 8);
	const char *fail = env_get("FAKECUDA_FAIL");
	char name[64];
	long long k;
	int code;
	if (fail && sscanf(fail, "%63[^:]:%lld:%d", name, &k, &code) == 3) {
		snprintf(control->fail_name, sizeof control->fail_name, "%s", strcmp(name, "*") ? name : "");
		control->fail_code = code;
		control->fail_after = k;
	}
}

/* same_function compares a symbol with a name that may lack the version suffix. */
static bool same_function(const char *symbol, const char *name) {
	size_t n = strlen(name);
	return strncmp(symbol, name, n) == 0 && (symbol[n] == 0 || (symbol[n] == '_' && symbol[n + 1] == 'v'));
}

CUresult enter(const char *name, CUresult *inject) {
	pthread_once(&once, setup);
	checkpoint_wait();
	control->calls++;
	if (control->fail_after && (!control->fail_name[0] || same_function(name, control->fail_name)) &&
	    (control->fail_after < 0 || --control->fail_after == 0)) {
		control->failed++;
		snprintf(control->last_failed, sizeof control->last_failed, "%s", name);
		*inject = (CUresult)control->fail_code;
	}
	if (!initialised && strcmp(name, "cuInit"))
		return NOT_INITIALIZED;
	return in_callback ? NOT_PERMITTED : OK;
}

/* is_fault reports whether the code means that the context is lost. */
bool is_fault(CUresult r) { return r >= ILLEGAL_ADDRESS && r < NOT_PERMITTED; }

static CUresult init(unsigned flags) {
	if (env_is("FAKECUDA_STUB", "1"))
		return 34; /* like the toolkit's stub library for linking */
	if (flags)
		return INVALID_VALUE;
	if (initialised)
		return OK;
	CUresult r = devices_init();
	initialised = r == OK;
	return r;
}
API(cuInit, (unsigned flags), init(flags))

/* cuGetExportTable finds no table: CUDA_ERROR_NOT_FOUND. NVRTC calls it without a check if a driver's library is loaded. */
EXPORT CUresult cuGetExportTable(const void **table, const void *id);
EXPORT CUresult cuGetExportTable(const void **table, const void *id) {
	(void)id;
	*table = NULL;
	return NOT_FOUND;
}

/* fakecudaFail makes the k-th counted call after it fail with code. k = 0 cancels that. */
EXPORT void fakecudaFail(int64_t k, int code);
EXPORT void fakecudaFail(int64_t k, int code) {
	pthread_once(&once, setup);
	control->fail_name[0] = 0;
	control->fail_code = code;
	control->fail_after = k;
}

/* fakecudaLive counts objects that this process has not released: of one kind by name, or of all kinds for NULL or "". */
EXPORT int64_t fakecudaLive(const char *kind);
EXPORT int64_t fakecudaLive(const char *kind) {
	static const char *names[LIVE_KINDS] = {"allocations", "mappings", "reservations", "handles", "ipc", "streams",
		"events", "contexts", "modules", "graphs", "pools", "host"};
	pthread_once(&once, setup);
	int64_t n = 0;
	bool known = !kind || !*kind;
	for (int i = 0; i < LIVE_KINDS; i++)
		if (!kind || !*kind || strcasecmp(kind, names[i]) == 0) {
			n += control->live[i];
			known = true;
		}
	return known ? n : -1;
}

/* fakecudaCalls returns the number of calls of this process so far. */
EXPORT int64_t fakecudaCalls(void);
EXPORT int64_t fakecudaCalls(void) { return control->calls; }
