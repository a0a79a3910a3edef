package cuda_test

// kernelsPTX contains kernels that the stand-in can run. Their bodies are for real devices.
const kernelsPTX = `
.version 7.0
.target sm_50
.address_size 64

.visible .global .align 4 .b8 table[16];

// y = a*x + y
.visible .entry saxpy(
	.param .f32 a,
	.param .u64 x,
	.param .u64 y,
	.param .u32 n
)
{
	.reg .pred p;
	.reg .b32 i, r<4>;
	.reg .b64 d<4>;
	.reg .f32 f<4>;
	mov.u32 r0, %ctaid.x;
	mov.u32 r1, %ntid.x;
	mov.u32 r2, %tid.x;
	mad.lo.s32 i, r0, r1, r2;
	ld.param.u32 r3, [n];
	setp.ge.u32 p, i, r3;
	@p bra done;
	ld.param.f32 f0, [a];
	ld.param.u64 d0, [x];
	ld.param.u64 d1, [y];
	mul.wide.u32 d2, i, 4;
	add.u64 d0, d0, d2;
	add.u64 d1, d1, d2;
	ld.global.f32 f1, [d0];
	ld.global.f32 f2, [d1];
	fma.rn.f32 f3, f0, f1, f2;
	st.global.f32 [d1], f3;
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
	.reg .pred q;
	.reg .b32 i, r<4>;
	.reg .b64 d<2>;
	mov.u32 r0, %ctaid.x;
	mov.u32 r1, %ntid.x;
	mov.u32 r2, %tid.x;
	mad.lo.s32 i, r0, r1, r2;
	ld.param.u32 r3, [n];
	setp.ge.u32 q, i, r3;
	@q bra done;
	ld.param.u64 d0, [p];
	ld.param.u32 r3, [value];
	mul.wide.u32 d1, i, 4;
	add.u64 d0, d0, d1;
	st.global.u32 [d0], r3;
done:
	ret;
}

.visible .entry empty()
{
	ret;
}

// takes a struct and numbers of all sizes, and cannot be run by the stand-in
.visible .entry shapes(
	.param .align 8 .b8 s[24],
	.param .u8 b,
	.param .u16 h,
	.param .u64 l,
	.param .f64 d
)
{
	ret;
}
`
