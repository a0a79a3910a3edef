// Command sharedtensor keeps models in memory that every process of a host can use in place, and lists the processes
// that use them.
//
// One process owns the models:
//
//	sharedtensor serve llm=model.safetensors
//
// Other processes attach to them by name, in microseconds and without a copy, through package endpoint or with the
// other commands, such as ls, inspect, get, publish, withdraw, watch and ping. The command doctor reports what this
// host can share, and why something cannot be shared.
//
// The exit status is 0 on success, 1 on failure, and 2 if the command line is invalid. Errors are one line on standard
// error.
package main
