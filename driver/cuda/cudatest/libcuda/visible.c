/* CUDA_VISIBLE_DEVICES: which devices a process sees, and in which order.
 *
 * The programming guide: a list of indices or UUIDs, separated by commas. A UUID is written as nvidia-smi does (GPU-..., MIG-...) and
 * may be abbreviated to a beginning that no other device has. The first invalid entry ends the list. MIG-GPU-<uuid>/<instance>/<compute
 * instance> is the older name of an instance. Only one instance is visible.
 *
 * Not in the guide, and as torch.cuda reads it: a device that is named twice hides all; the first entry decides whether the list has
 * indices, GPUs or instances, and an entry of another kind ends it; a number ends at the first other character. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum entry { INDEX, GPU, MIG };

static enum entry kind_of(const char *s) { return strncmp(s, "GPU-", 4) == 0 ? GPU : strncmp(s, "MIG-", 4) == 0 ? MIG : INDEX; }

/* text writes a UUID as nvidia-smi does, without its prefix. */
static void text(char out[37], const uint8_t uuid[16]) {
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		out += sprintf(out, "%02x", uuid[i]);
	}
}

/* matches reports whether the n characters at s begin the UUID. */
static bool matches(const char *s, size_t n, const uint8_t uuid[16]) {
	char whole[37];
	text(whole, uuid);
	return n > 0 && n < sizeof whole && strncmp(s, whole, n) == 0;
}

/* by_uuid returns the only device that an entry of n characters names, or -1. */
static int by_uuid(const char *s, size_t n, const struct device *all, int count) {
	int found = -1;
	for (int i = 0; i < count; i++) {
		bool mig = memcmp(all[i].uuid, all[i].gpu_uuid, 16) != 0, hit;
		if (kind_of(s) == GPU) {
			hit = matches(s + 4, n - 4, all[i].gpu_uuid);
		} else if (n > 8 && strncmp(s, "MIG-GPU-", 8) == 0) { /* the stand-in has one instance in each GPU: 0/0 */
			const char *slash = memchr(s, '/', n);
			hit = mig && slash && slash - s == 44 && matches(s + 8, 36, all[i].gpu_uuid) && n == 48 && strncmp(slash, "/0/0", 4) == 0;
		} else {
			hit = mig && matches(s + 4, n - 4, all[i].uuid);
		}
		if (hit && found >= 0)
			return -1; /* ambiguous */
		if (hit)
			found = i;
	}
	return found;
}

/* visible_devices writes the numbers of the visible devices to out, which has space for max, and returns how many there are. */
int visible_devices(const char *list, const struct device *all, int count, int *out, int max) {
	int n = 0;
	enum entry first = kind_of(list);
	for (const char *s = list; *s;) {
		const char *comma = strchr(s, ',');
		size_t length = comma ? (size_t)(comma - s) : strlen(s);
		int found;
		if (kind_of(s) != first)
			break;
		if (first == INDEX) {
			char *end;
			long number = strtol(s, &end, 10);
			found = end == s || number < 0 || number >= count ? -1 : (int)number;
		} else {
			found = by_uuid(s, length, all, count);
		}
		if (found < 0)
			break;
		for (int i = 0; i < n; i++)
			if (out[i] == found)
				return 0;
		if (n == max || (first == MIG && n == 1))
			break;
		out[n++] = found;
		if (!comma)
			break;
		s = comma + 1;
	}
	return n;
}
