package keeper_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
)

// The keeper that an owner of endpointtest starts beside its socket ends with the test, also if the owner was killed.
func TestKeeperEndsWithItsTest(t *testing.T) {
	for _, killed := range []bool{false, true} {
		var socket string
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			p := endpointtest.StartProcess(t)
			socket = keeperOf(p.Socket, nil)
			require.Len(t, keepersOn(t, socket), 1)
			if killed {
				p.Kill()
				require.Len(t, keepersOn(t, socket), 1, "a keeper outlives its owner")
			}
		})
		require.Eventually(t, func() bool { return len(keepersOn(t, socket)) == 0 }, 20*time.Second, 10*time.Millisecond)
	}
}

// keepersOn returns the keepers of a socket that run.
func keepersOn(t *testing.T, socket string) (pids []string) {
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if string(line) == os.Args[0]+"\x00keep\x00"+socket+"\x00" {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
