// Package demo shows, with real processes, how a model is shared in place: one owner, readers that attach without a
// copy, and what survives when a reader or the owner is killed.
//
// [Run] directs the demo. It starts this program again for every other role, and each of these processes runs [Work]:
// it reads requests as JSON lines from standard input and writes replies to standard output. If standard input ends
// before a quit request, the director has died, and the process cleans up and exits.
//
// The director does not map the model. It queries the owner over a separate connection, and reads the memory use of
// each process from /proc/PID/smaps.
package demo
