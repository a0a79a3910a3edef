// Command sharedtensor keeps models in memory that every process of a host can use in place, and shows their users.
//
// One process owns them:
//
//	sharedtensor serve llm=model.safetensors
//
// and others attach to them by name, in microseconds and without a copy, through package endpoint or with the other
// commands: ls, inspect, get, publish, withdraw, watch, ping. The command doctor says what this host can share, how,
// and why not.
//
// The exit status is 0 when all went well, 1 when it did not, and 2 when the command line makes no sense. Errors are
// one line on standard error.
package main
