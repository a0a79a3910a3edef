//go:build linux && !cudapurego && !nocuda

#include "textflag.h"

// These functions have C's calling convention (System V). runtime.cgocall calls them on the system stack with the
// address of a frame in DI, and returns the 32 bits in AX.
//
// The frame may be on the goroutine's stack, which can move when C calls back into Go. So everything is copied from the
// frame before the first call, and the result stays in AX or on the system stack.
//
// A TEXT with a frame of 16*n bytes keeps the stack aligned to 16 bytes at each CALL. AL is the number of vector
// registers that a variadic function may read: 0.

GLOBL ·call6Address(SB), NOPTR|RODATA, $8
DATA ·call6Address(SB)/8, $call6<>(SB)
GLOBL ·call16Address(SB), NOPTR|RODATA, $8
DATA ·call16Address(SB)/8, $call16<>(SB)
GLOBL ·callGuarded6Address(SB), NOPTR|RODATA, $8
DATA ·callGuarded6Address(SB)/8, $callGuarded6<>(SB)
GLOBL ·callGuarded16Address(SB), NOPTR|RODATA, $8
DATA ·callGuarded16Address(SB)/8, $callGuarded16<>(SB)

// call6 jumps to Fn with the words in registers. Fn returns to the caller of call6.
TEXT call6<>(SB), NOSPLIT|NOFRAME, $0
	MOVQ 0(DI), R11
	MOVQ 16(DI), SI
	MOVQ 24(DI), DX
	MOVQ 32(DI), CX
	MOVQ 40(DI), R8
	MOVQ 48(DI), R9
	MOVQ 8(DI), DI
	XORL AX, AX
	JMP  R11

// call16 copies words 6 to 15 to the stack.
TEXT call16<>(SB), NOSPLIT, $80
	MOVUPS 56(DI), X0
	MOVUPS 72(DI), X1
	MOVUPS 88(DI), X2
	MOVUPS 104(DI), X3
	MOVUPS 120(DI), X4
	MOVUPS X0, 0(SP)
	MOVUPS X1, 16(SP)
	MOVUPS X2, 32(SP)
	MOVUPS X3, 48(SP)
	MOVUPS X4, 64(SP)
	MOVQ   0(DI), R11
	MOVQ   16(DI), SI
	MOVQ   24(DI), DX
	MOVQ   32(DI), CX
	MOVQ   40(DI), R8
	MOVQ   48(DI), R9
	MOVQ   8(DI), DI
	XORL   AX, AX
	CALL   R11
	RET

// callGuarded6 calls Push, Fn and Pop. Its frame: 0 Fn, 8 words 0 to 5, 56 Pop, 64 result.
TEXT callGuarded6<>(SB), NOSPLIT, $80
	MOVUPS 0(DI), X0
	MOVUPS 16(DI), X1
	MOVUPS 32(DI), X2
	MOVQ   48(DI), R8
	MOVQ   64(DI), R9
	MOVUPS X0, 0(SP)
	MOVUPS X1, 16(SP)
	MOVUPS X2, 32(SP)
	MOVQ   R8, 48(SP)
	MOVQ   R9, 56(SP)
	MOVQ   56(DI), R11
	MOVQ   72(DI), DI
	XORL   AX, AX
	CALL   R11
	TESTL  AX, AX
	JNE    done
	MOVQ   0(SP), R11
	MOVQ   8(SP), DI
	MOVQ   16(SP), SI
	MOVQ   24(SP), DX
	MOVQ   32(SP), CX
	MOVQ   40(SP), R8
	MOVQ   48(SP), R9
	XORL   AX, AX
	CALL   R11
	MOVL   AX, 64(SP)
	MOVQ   56(SP), R11
	XORL   DI, DI
	XORL   AX, AX
	CALL   R11
	MOVL   64(SP), AX
done:
	RET

// callGuarded16 calls Push, Fn and Pop. Its frame: 0 words 6 to 15, 80 Fn, 88 words 0 to 5, 136 Pop, 144 result. Push and
// Pop have no arguments on the stack, so they leave words 6 to 15 alone.
TEXT callGuarded16<>(SB), NOSPLIT, $160
	MOVUPS 56(DI), X0
	MOVUPS 72(DI), X1
	MOVUPS 88(DI), X2
	MOVUPS 104(DI), X3
	MOVUPS 120(DI), X4
	MOVUPS X0, 0(SP)
	MOVUPS X1, 16(SP)
	MOVUPS X2, 32(SP)
	MOVUPS X3, 48(SP)
	MOVUPS X4, 64(SP)
	MOVUPS 0(DI), X0
	MOVUPS 16(DI), X1
	MOVUPS 32(DI), X2
	MOVQ   48(DI), R8
	MOVQ   144(DI), R9
	MOVUPS X0, 80(SP)
	MOVUPS X1, 96(SP)
	MOVUPS X2, 112(SP)
	MOVQ   R8, 128(SP)
	MOVQ   R9, 136(SP)
	MOVQ   136(DI), R11
	MOVQ   152(DI), DI
	XORL   AX, AX
	CALL   R11
	TESTL  AX, AX
	JNE    done
	MOVQ   80(SP), R11
	MOVQ   88(SP), DI
	MOVQ   96(SP), SI
	MOVQ   104(SP), DX
	MOVQ   112(SP), CX
	MOVQ   120(SP), R8
	MOVQ   128(SP), R9
	XORL   AX, AX
	CALL   R11
	MOVL   AX, 144(SP)
	MOVQ   136(SP), R11
	XORL   DI, DI
	XORL   AX, AX
	CALL   R11
	MOVL   144(SP), AX
done:
	RET
