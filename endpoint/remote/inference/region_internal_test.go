package inference

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// sharedFile creates shared memory of this user and returns its key.
func sharedFile(t *testing.T, content string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("system shared memory needs Linux")
	}
	key := fmt.Sprintf("/sharedtensor-test-%d-%s", os.Getpid(), filepath.Base(t.TempDir()))
	path := filepath.Join("/dev/shm", key)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
	t.Cleanup(func() { _ = os.Remove(path) })
	return key
}

// A client registers only files of its own user.
func TestRegionsBelongToTheClientsUser(t *testing.T) {
	t.Parallel()
	key := sharedFile(t, "private!")
	memory, err := openSystemRegion(key, uint32(os.Geteuid()), 0, 8)
	require.NoError(t, err)
	require.NoError(t, memory.close())
	_, err = openSystemRegion(key, uint32(os.Geteuid())+1, 0, 8)
	require.ErrorIs(t, err, ErrInvalid)
}

// A request writes to the region that had the name when it began, and identities do not share names.
func TestRegionsAreHeld(t *testing.T) {
	t.Parallel()
	as := func(name string) context.Context {
		return rights.WithIdentity(t.Context(), rights.Identity{Method: rights.MethodToken, Name: name})
	}
	var s service
	register := func(ctx context.Context, content string) *region {
		memory, err := openSystemRegion(sharedFile(t, content), uint32(os.Geteuid()), 0, 8)
		require.NoError(t, err)
		r := &region{regionName: regionOf(ctx, "out"), bytes: 8, memory: memory}
		require.NoError(t, s.regions.add(r))
		return r
	}
	t.Cleanup(s.regions.close)
	a, b := as("a"), as("b")
	first := register(a, "--------")
	claim := &regionClaim{name: "out", bytes: 8}
	release, err := s.hold(a, &request{outputs: []wanted{{name: "y", region: claim}}})
	require.NoError(t, err)
	require.Same(t, first, claim.held)
	require.NoError(t, s.regions.remove(regionOf(a, ""), false))
	second := register(a, "========")
	require.NoError(t, claim.held.memory.writeAt([]byte("result!!"), 0))
	content := make([]byte, 8)
	require.NoError(t, second.memory.readAt(content, 0))
	require.Equal(t, "========", string(content))
	release()
	require.Error(t, first.memory.readAt(content, 0), "closed after its last request")

	_, err = s.hold(b, &request{outputs: []wanted{{name: "y", region: claim}}})
	require.ErrorIs(t, err, ErrNotFound)
	register(b, "of the other")
	require.NoError(t, s.regions.remove(regionOf(b, ""), false))
	list, err := s.regions.list(regionOf(a, ""), false)
	require.NoError(t, err)
	require.Len(t, list, 1)
}
