package command

import (
	"fmt"
	"os"
)

// actAsChild runs the role that a test has selected for this process, if any.
func actAsChild() {
	if socket := os.Getenv(hostileSocketEnv); socket != "" {
		fmt.Fprintln(os.Stderr, runHostileOwner(socket, os.Getenv(hostileMoodEnv)))
		os.Exit(1)
	}
}
