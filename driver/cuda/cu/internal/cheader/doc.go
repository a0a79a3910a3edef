// Package cheader reads C headers of the kind that cuda.h is: declarations only, no bit fields, no function bodies.
//
// [Preprocess] turns a file into tokens: it follows conditionals, expands macros and remembers them. It does not follow
// #include, because the declarations wanted are in one file and the few standard names they use (size_t, uint64_t) are
// built in. [Parse] turns the tokens into a [Header]: typedefs, records with the offsets that the 64-bit System V and
// AAPCS64 conventions give them (both lay records out alike), enumerations and functions.
//
// The package serves the generator of driver/cuda/cu and the tests that count what is bound; it is not a compiler, and
// what it does not know it refuses with an error that names the line.
package cheader
