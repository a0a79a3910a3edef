// Package cheader reads C headers such as cuda.h, which contain declarations only, without bit fields and function
// bodies.
//
// [Preprocess] converts a file to tokens: it evaluates conditionals, and records and expands macros. It ignores
// #include, because the required declarations are in one file and the few standard names they use (size_t, uint64_t) are
// built in. [Parse] converts the tokens to a [Header]: typedefs, records with their offsets (the same in the 64-bit
// System V and AAPCS64 conventions), enumerations and functions.
//
// The package supports the generator of driver/cuda/cu and the tests that count bound functions. It is not a compiler.
// It rejects unsupported syntax with an error that contains the line number.
package cheader
