//go:build linux && !cudapurego && !nocuda

#include "textflag.h"

// These functions have C's calling convention (AAPCS64). runtime.cgocall calls them on the system stack with the address
// of a frame in R0, and returns the 32 bits in R0.
//
// The frame may be on the goroutine's stack, which can move when C calls back into Go. So everything is copied from the
// frame before the first call, and the result stays in R0 or on the system stack.
//
// The assembler saves LR above the space that SUB reserves. Arguments on the stack begin at 0(RSP), which must be a
// multiple of 16.

GLOBL ·call6Address(SB), NOPTR|RODATA, $8
DATA ·call6Address(SB)/8, $call6<>(SB)
GLOBL ·call16Address(SB), NOPTR|RODATA, $8
DATA ·call16Address(SB)/8, $call16<>(SB)
GLOBL ·callCopyAddress(SB), NOPTR|RODATA, $8
DATA ·callCopyAddress(SB)/8, $callCopy<>(SB)
GLOBL ·callGuarded6Address(SB), NOPTR|RODATA, $8
DATA ·callGuarded6Address(SB)/8, $callGuarded6<>(SB)
GLOBL ·callGuarded16Address(SB), NOPTR|RODATA, $8
DATA ·callGuarded16Address(SB)/8, $callGuarded16<>(SB)
GLOBL ·callGuardedCopyAddress(SB), NOPTR|RODATA, $8
DATA ·callGuardedCopyAddress(SB)/8, $callGuardedCopy<>(SB)

// LOAD6 and LOAD8 load Fn into R9 and the words into registers. base is the address of Fn; it may be R0.
#define LOAD6(base) \
	MOVD 0(base), R9        \
	LDP  16(base), (R1, R2) \
	LDP  32(base), (R3, R4) \
	MOVD 48(base), R5       \
	MOVD 8(base), R0

#define LOAD8(base) \
	MOVD 0(base), R9        \
	LDP  16(base), (R1, R2) \
	LDP  32(base), (R3, R4) \
	LDP  48(base), (R5, R6) \
	MOVD 64(base), R7       \
	MOVD 8(base), R0

// MOVE16 copies 16 bytes. RSP cannot be an argument of a macro, so `to` is a register.
#define MOVE16(from, fromOffset, to, toOffset) \
	LDP fromOffset(from), (R10, R11) \
	STP (R10, R11), toOffset(to)

// call6 jumps to Fn with the words in registers. Fn returns to the caller of call6.
TEXT call6<>(SB), NOSPLIT|NOFRAME, $0
	LOAD6(R0)
	JMP (R9)

// call16 copies words 8 to 15 to the stack.
TEXT call16<>(SB), NOSPLIT, $0
	SUB  $64, RSP
	MOVD RSP, R12
	MOVE16(R0, 72, R12, 0)
	MOVE16(R0, 88, R12, 16)
	MOVE16(R0, 104, R12, 32)
	MOVE16(R0, 120, R12, 48)
	LOAD8(R0)
	BL   (R9)
	ADD  $64, RSP
	RET

// callCopy copies the record at 80 to the stack and stores its address in the word whose index is at 72.
TEXT callCopy<>(SB), NOSPLIT, $0
	SUB  $64, RSP
	MOVD RSP, R12
	MOVE16(R0, 80, R12, 0)
	MOVE16(R0, 96, R12, 16)
	MOVE16(R0, 112, R12, 32)
	MOVE16(R0, 128, R12, 48)
	ADD  $8, R0, R10
	MOVD 72(R0), R11
	MOVD R12, (R10)(R11<<3)
	LOAD8(R0)
	BL   (R9)
	ADD  $64, RSP
	RET

// callGuarded6 calls Push, Fn and Pop. Its frame: 0 Fn, 8 words 0 to 5, 56 Pop, 64 result.
TEXT callGuarded6<>(SB), NOSPLIT, $0
	SUB  $80, RSP
	MOVD RSP, R12
	MOVE16(R0, 0, R12, 0)
	MOVE16(R0, 16, R12, 16)
	MOVE16(R0, 32, R12, 32)
	MOVD 48(R0), R10
	MOVD R10, 48(RSP)
	MOVD 64(R0), R10
	MOVD R10, 56(RSP)
	MOVD 56(R0), R9
	MOVD 72(R0), R0
	BL   (R9)
	CBNZW R0, done
	MOVD RSP, R12
	LOAD6(R12)
	BL   (R9)
	MOVW R0, 64(RSP)
	MOVD 56(RSP), R9
	MOVD $0, R0
	BL   (R9)
	MOVW 64(RSP), R0
done:
	ADD  $80, RSP
	RET

// callGuarded16 calls Push, Fn and Pop. Its frame: 0 words 8 to 15, 64 Fn, 72 words 0 to 7, 136 Pop, 144 result. Push and
// Pop have no arguments on the stack, so they leave words 8 to 15 alone.
TEXT callGuarded16<>(SB), NOSPLIT, $0
	SUB  $160, RSP
	MOVD RSP, R12
	MOVE16(R0, 72, R12, 0)
	MOVE16(R0, 88, R12, 16)
	MOVE16(R0, 104, R12, 32)
	MOVE16(R0, 120, R12, 48)
	MOVE16(R0, 0, R12, 64)
	MOVE16(R0, 16, R12, 80)
	MOVE16(R0, 32, R12, 96)
	MOVE16(R0, 48, R12, 112)
	MOVD 64(R0), R10
	MOVD R10, 128(RSP)
	MOVD 144(R0), R10
	MOVD R10, 136(RSP)
	MOVD 136(R0), R9
	MOVD 152(R0), R0
	BL   (R9)
	CBNZW R0, done
	ADD  $64, RSP, R12
	LOAD8(R12)
	BL   (R9)
	MOVW R0, 144(RSP)
	MOVD 136(RSP), R9
	MOVD $0, R0
	BL   (R9)
	MOVW 144(RSP), R0
done:
	ADD  $160, RSP
	RET

// callGuardedCopy calls Push, Fn and Pop. Its frame: 0 the record, 64 Fn, 72 words 0 to 7, 136 Pop, 144 result.
TEXT callGuardedCopy<>(SB), NOSPLIT, $0
	SUB  $160, RSP
	MOVD RSP, R12
	MOVE16(R0, 80, R12, 0)
	MOVE16(R0, 96, R12, 16)
	MOVE16(R0, 112, R12, 32)
	MOVE16(R0, 128, R12, 48)
	ADD  $8, R0, R10
	MOVD 72(R0), R11
	MOVD R12, (R10)(R11<<3)
	MOVE16(R0, 0, R12, 64)
	MOVE16(R0, 16, R12, 80)
	MOVE16(R0, 32, R12, 96)
	MOVE16(R0, 48, R12, 112)
	MOVD 64(R0), R10
	MOVD R10, 128(RSP)
	MOVD 152(R0), R10
	MOVD R10, 136(RSP)
	MOVD 144(R0), R9
	MOVD 160(R0), R0
	BL   (R9)
	CBNZW R0, done
	ADD  $64, RSP, R12
	LOAD8(R12)
	BL   (R9)
	MOVW R0, 144(RSP)
	MOVD 136(RSP), R9
	MOVD $0, R0
	BL   (R9)
	MOVW 144(RSP), R0
done:
	ADD  $160, RSP
	RET
