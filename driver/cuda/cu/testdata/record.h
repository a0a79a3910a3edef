/* The plain types of recorder.c, and functions of 0 to 17 parameters that record the bytes of each. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
typedef void *ptr;
typedef struct { int32_t a, b; } words8;
typedef struct { char b[64]; } bytes64;

/* The arguments of the last call, read by the test. */
unsigned char recorded[512];
size_t recorded_bytes;

static void record(const void *p, size_t n)
{
	memcpy(recorded + recorded_bytes, p, n);
	recorded_bytes += n;
}

/* quiet_push and quiet_pop stand for cuCtxPushCurrent and cuCtxPopCurrent around a recorded call. */
u64 pushed;
i32 push_result, pops;
int quiet_push(u64 ctx) { pushed = ctx; recorded_bytes = 0; return push_result; }
int quiet_pop(ptr out) { pops += out == NULL; return 7; }

#define R(x) record(&x, sizeof x);
#define START(n) recorded_bytes = 0; (void)n;

#define F0(f, n) int f(void) { START(n) return n; }
#define F1(f, n, A) int f(A a) { START(n) R(a) return n; }
#define F2(f, n, A, B) int f(A a, B b) { START(n) R(a) R(b) return n; }
#define F3(f, n, A, B, C) int f(A a, B b, C c) { START(n) R(a) R(b) R(c) return n; }
#define F4(f, n, A, B, C, D) int f(A a, B b, C c, D d) { START(n) R(a) R(b) R(c) R(d) return n; }
#define F5(f, n, A, B, C, D, E) \
	int f(A a, B b, C c, D d, E e) { START(n) R(a) R(b) R(c) R(d) R(e) return n; }
#define F6(f, n, A, B, C, D, E, G) \
	int f(A a, B b, C c, D d, E e, G g) { START(n) R(a) R(b) R(c) R(d) R(e) R(g) return n; }
#define F7(f, n, A, B, C, D, E, G, H) \
	int f(A a, B b, C c, D d, E e, G g, H h) { START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) return n; }
#define F8(f, n, A, B, C, D, E, G, H, I) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) return n; }
#define F9(f, n, A, B, C, D, E, G, H, I, J) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) return n; }
#define F10(f, n, A, B, C, D, E, G, H, I, J, K) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j, K k) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) R(k) return n; }
#define F11(f, n, A, B, C, D, E, G, H, I, J, K, L) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j, K k, L l) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) R(k) R(l) return n; }
#define F12(f, n, A, B, C, D, E, G, H, I, J, K, L, M) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j, K k, L l, M m) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) R(k) R(l) R(m) return n; }
#define F15(f, n, A, B, C, D, E, G, H, I, J, K, L, M, O, P, Q) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j, K k, L l, M m, O o, P p, Q q) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) R(k) R(l) R(m) R(o) R(p) R(q) return n; }
#define F16(f, n, A, B, C, D, E, G, H, I, J, K, L, M, O, P, Q, S) \
	int f(A a, B b, C c, D d, E e, G g, H h, I i, J j, K k, L l, M m, O o, P p, Q q, S s) \
	{ START(n) R(a) R(b) R(c) R(d) R(e) R(g) R(h) R(i) R(j) R(k) R(l) R(m) R(o) R(p) R(q) R(s) return n; }
