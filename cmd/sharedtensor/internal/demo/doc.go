// Package demo shows, with real processes, what sharing a model in place means: one owner, readers that attach without
// a copy, and what is left when a reader or the owner is killed.
//
// [Run] is the process that directs. It starts this program again for every other role, and each of these runs [Work]:
// it takes requests as JSON lines on standard input and answers on standard output. Standard input is also the string
// that holds them: when it ends before a request to quit, the director is gone, and the process cleans up and ends by
// itself.
//
// The director maps nothing of the model. It asks the owner over its own connection, and the kernel, in
// /proc/PID/smaps, for what each process takes.
package demo
