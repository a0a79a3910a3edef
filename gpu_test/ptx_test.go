//go:build linux

package gpu_test

// kernelsPTX holds the kernels of these tests, for Maxwell GPUs and newer. The stand-in does not execute PTX; it
// implements these kernels by name and parameters.
const kernelsPTX = `
.version 7.0
.target sm_50
.address_size 64

// y[i] = a*x[i] + y[i], one thread an element
.visible .entry saxpy(
	.param .f32 a,
	.param .u64 x,
	.param .u64 y,
	.param .u32 n
)
{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %d<6>;
	.reg .f32 %f<4>;
	mov.u32 %r0, %ctaid.x;
	mov.u32 %r1, %ntid.x;
	mov.u32 %r2, %tid.x;
	mad.lo.u32 %r3, %r0, %r1, %r2;
	ld.param.u32 %r4, [n];
	setp.ge.u32 %p, %r3, %r4;
	@%p bra done;
	ld.param.f32 %f0, [a];
	ld.param.u64 %d0, [x];
	ld.param.u64 %d1, [y];
	cvta.to.global.u64 %d0, %d0;
	cvta.to.global.u64 %d1, %d1;
	mul.wide.u32 %d2, %r3, 4;
	add.u64 %d3, %d0, %d2;
	add.u64 %d4, %d1, %d2;
	ld.global.f32 %f1, [%d3];
	ld.global.f32 %f2, [%d4];
	fma.rn.f32 %f3, %f0, %f1, %f2;
	st.global.f32 [%d4], %f3;
done:
	ret;
}

// c = a times b, row after row: a has m rows and k columns, b k rows and n columns. One thread makes one element; x counts columns.
.visible .entry matmul(
	.param .u64 a,
	.param .u64 b,
	.param .u64 c,
	.param .u32 m,
	.param .u32 n,
	.param .u32 k
)
{
	.reg .pred %p<3>;
	.reg .b32 %r<12>;
	.reg .b64 %d<8>;
	.reg .f32 %f<3>;
	mov.u32 %r0, %ctaid.x;
	mov.u32 %r1, %ntid.x;
	mov.u32 %r2, %tid.x;
	mad.lo.u32 %r3, %r0, %r1, %r2;
	mov.u32 %r0, %ctaid.y;
	mov.u32 %r1, %ntid.y;
	mov.u32 %r2, %tid.y;
	mad.lo.u32 %r4, %r0, %r1, %r2;
	ld.param.u32 %r5, [m];
	ld.param.u32 %r6, [n];
	ld.param.u32 %r7, [k];
	setp.ge.u32 %p0, %r3, %r6;
	setp.ge.u32 %p1, %r4, %r5;
	or.pred %p0, %p0, %p1;
	@%p0 bra done;
	ld.param.u64 %d0, [a];
	ld.param.u64 %d1, [b];
	ld.param.u64 %d2, [c];
	cvta.to.global.u64 %d0, %d0;
	cvta.to.global.u64 %d1, %d1;
	cvta.to.global.u64 %d2, %d2;
	// d0: the row of a; d1: the column of b; d3: from one row of b to the next; d2: the element of c
	mul.wide.u32 %d4, %r4, %r7;
	shl.b64 %d4, %d4, 2;
	add.u64 %d0, %d0, %d4;
	mul.wide.u32 %d4, %r3, 4;
	add.u64 %d1, %d1, %d4;
	mul.wide.u32 %d3, %r6, 4;
	mul.wide.u32 %d5, %r4, %r6;
	shl.b64 %d5, %d5, 2;
	add.u64 %d2, %d2, %d5;
	add.u64 %d2, %d2, %d4;
	mov.f32 %f0, 0f00000000;
	mov.u32 %r8, 0;
	bra test;
step:
	ld.global.f32 %f1, [%d0];
	ld.global.f32 %f2, [%d1];
	fma.rn.f32 %f0, %f1, %f2, %f0;
	add.u64 %d0, %d0, 4;
	add.u64 %d1, %d1, %d3;
	add.u32 %r8, %r8, 1;
test:
	setp.lt.u32 %p2, %r8, %r7;
	@%p2 bra step;
	st.global.f32 [%d2], %f0;
done:
	ret;
}

// p[i] = value
.visible .entry fill(
	.param .u64 p,
	.param .u32 value,
	.param .u32 n
)
{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %d<3>;
	mov.u32 %r0, %ctaid.x;
	mov.u32 %r1, %ntid.x;
	mov.u32 %r2, %tid.x;
	mad.lo.u32 %r3, %r0, %r1, %r2;
	ld.param.u32 %r4, [n];
	setp.ge.u32 %p, %r3, %r4;
	@%p bra done;
	ld.param.u64 %d0, [p];
	cvta.to.global.u64 %d0, %d0;
	ld.param.u32 %r5, [value];
	mul.wide.u32 %d1, %r3, 4;
	add.u64 %d2, %d0, %d1;
	st.global.u32 [%d2], %r5;
done:
	ret;
}

.visible .entry empty()
{
	ret;
}
`
