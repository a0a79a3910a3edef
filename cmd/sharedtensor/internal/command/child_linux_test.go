package command

import (
	"fmt"
	"os"
)

// actAsChild makes this process what a test has started it for, if it has.
func actAsChild() {
	if socket := os.Getenv(hostileSocketEnv); socket != "" {
		fmt.Fprintln(os.Stderr, runHostileOwner(socket, os.Getenv(hostileMoodEnv)))
		os.Exit(1)
	}
}
