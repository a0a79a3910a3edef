package main

import (
	"os"
	"testing"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// commandEnv makes a process of this test binary run a command line of the program.
const commandEnv = "SHAREDTENSOR_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		os.Exit(interruptible(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	remotetest.Main(m, newComponents)
}
