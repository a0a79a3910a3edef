//go:build linux

package gpu_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// socketPath returns the path of a socket in a temporary directory. It is short enough for the kernel.
func socketPath(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s.sock")
}

// eventually waits until ok returns true.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("did not come about: %s", what)
		}
	}
}

// serving starts an owner that serves on a new socket.
func serving(tb testing.TB, kind driver.HandleKind) (*process, string) {
	tb.Helper()
	socket := socketPath(tb)
	o := open(tb, kind)
	o.must(request{Do: "serve", Socket: socket})
	return o, socket
}

// client starts a process that is connected to the socket.
func client(tb testing.TB, kind driver.HandleKind, socket string) *process {
	tb.Helper()
	c := open(tb, kind)
	c.must(request{Do: "dial", Socket: socket})
	return c
}

// onEveryKind runs a test for each handle kind that works on this machine.
func onEveryKind(t *testing.T, run func(t *testing.T, kind driver.HandleKind)) {
	for _, kind := range kindsHere(t, openDevice(t)) {
		t.Run(string(kind), func(t *testing.T) { run(t, kind) })
	}
}

func TestSharing(t *testing.T) {
	onEveryKind(t, func(t *testing.T, kind driver.HandleKind) {
		o, socket := serving(t, kind)
		o.must(request{Do: "publish", Name: "m", Seed: 7, Bytes: 6 << 20})
		for range 3 {
			c := client(t, kind, socket)
			require.EqualValues(t, 1, c.must(request{Do: "acquire", Name: "m", Key: "h"}).Version)
			c.must(request{Do: "check", Key: "h", Seed: 7, Bytes: 6 << 20})
			require.NotEmpty(t, c.must(request{Do: "sum", Key: "h"}).Text, "a kernel reads the owner's memory")
		}
		require.EqualValues(t, 3, o.must(request{Do: "holders"}).Bytes)
	})
}

func TestVersionsAndEvents(t *testing.T) {
	onEveryKind(t, func(t *testing.T, kind driver.HandleKind) {
		o, socket := serving(t, kind)
		o.must(request{Do: "publish", Name: "m", Seed: 1})
		c := client(t, kind, socket)
		c.must(request{Do: "acquire", Name: "m", Key: "old"})
		c.must(request{Do: "watch"})
		require.Equal(t, "published m", c.must(request{Do: "next"}).Text)
		require.EqualValues(t, 2, o.must(request{Do: "publish", Name: "m", Seed: 2}).Version)
		require.EqualValues(t, 2, c.must(request{Do: "next"}).Version)
		c.must(request{Do: "acquire", Name: "m", Key: "new"})
		c.must(request{Do: "check", Key: "old", Seed: 1})
		c.must(request{Do: "check", Key: "new", Seed: 2})
		eventually(t, "the handle hears of it", func() bool { return c.must(request{Do: "state", Key: "old"}).Text == "superseded" })
		c.must(request{Do: "release", Key: "old"})
		eventually(t, "version 1 is freed", func() bool {
			r := c.ask(request{Do: "acquire", Name: "m", Key: "gone", Version: 1})
			if r.Error == "" {
				c.must(request{Do: "release", Key: "gone"})
			}
			return r.Error != ""
		})
		c.must(request{Do: "check", Key: "new", Seed: 2})
	})
}

func TestKilledClientReleasesLeases(t *testing.T) {
	onEveryKind(t, func(t *testing.T, kind driver.HandleKind) {
		o, socket := serving(t, kind)
		o.must(request{Do: "publish", Name: "m", Seed: 3})
		for range 3 {
			c := client(t, kind, socket)
			c.must(request{Do: "acquire", Name: "m", Key: "h"})
			require.EqualValues(t, 1, o.must(request{Do: "holders"}).Bytes)
			c.kill()
			eventually(t, "the reference is back", func() bool { return o.must(request{Do: "holders"}).Bytes == 0 })
		}
		c := client(t, kind, socket)
		c.must(request{Do: "acquire", Name: "m", Key: "h"})
		c.must(request{Do: "check", Key: "h", Seed: 3})
	})
}

// A client keeps reading cuda-fd memory after its owner was killed. For cuda-ipc this is not promised; see the fact
// ipc-owner-killed.
func TestClientReadsAfterOwnerKilled(t *testing.T) {
	needKind(t, driver.CUDAFD)
	o, socket := serving(t, driver.CUDAFD)
	o.must(request{Do: "publish", Name: "m", Seed: 4, Bytes: 32 << 20})
	c := client(t, driver.CUDAFD, socket)
	c.must(request{Do: "acquire", Name: "m", Key: "h"})
	c.must(request{Do: "watch"})
	require.Equal(t, "published m", c.must(request{Do: "next"}).Text)
	o.kill()
	require.Equal(t, "owner lost ", c.must(request{Do: "next"}).Text)
	overwrite(t, 32<<20)
	c.must(request{Do: "check", Key: "h", Seed: 4, Bytes: 32 << 20})
	c.must(request{Do: "sum", Key: "h"})

	// Another owner listens on the socket, and the client connects to it.
	o = open(t, driver.CUDAFD)
	o.must(request{Do: "serve", Socket: socket})
	o.must(request{Do: "publish", Name: "m", Seed: 5})
	require.Equal(t, "owner back ", c.must(request{Do: "next"}).Text)
	c.must(request{Do: "acquire", Name: "m", Key: "h2"})
	c.must(request{Do: "check", Key: "h2", Seed: 5})
	require.Equal(t, "orphaned", c.must(request{Do: "state", Key: "h"}).Text)
	c.must(request{Do: "check", Key: "h", Seed: 4, Bytes: 32 << 20})
}

func TestClientPublishesMemory(t *testing.T) {
	needKind(t, driver.CUDAFD)
	o, socket := serving(t, driver.CUDAFD)
	publisher, reader := client(t, driver.CUDAFD, socket), client(t, driver.CUDAFD, socket)
	publisher.must(request{Do: "offer", Name: "m", Seed: 6})
	reader.must(request{Do: "acquire", Name: "m", Key: "h"})
	reader.must(request{Do: "check", Key: "h", Seed: 6})
	publisher.kill()
	reader.must(request{Do: "check", Key: "h", Seed: 6})
	late := client(t, driver.CUDAFD, socket)
	late.must(request{Do: "acquire", Name: "m", Key: "h"})
	late.must(request{Do: "check", Key: "h", Seed: 6})
	require.EqualValues(t, 2, o.must(request{Do: "holders"}).Bytes)
}

// A kernel of the owner runs on memory of the client, and the client receives the owner's result. Results must outlive
// the owner, so their memory cannot be of kind cuda-ipc.
func TestCallWithGPUTensors(t *testing.T) {
	needKind(t, driver.CUDAFD)
	_, socket := serving(t, driver.CUDAFD)
	c := client(t, driver.CUDAFD, socket)
	for range 3 {
		c.must(request{Do: "call"})
	}
}

func TestFactAttach(t *testing.T) {
	eachSlab(t, attachFact, func(t *testing.T, name string, kind driver.HandleKind, bytes int64) {
		o, socket := serving(t, kind)
		o.must(request{Do: "publish empty", Name: "m", Bytes: bytes})
		c := client(t, kind, socket)
		times := durations(c.must(request{Do: "time acquire", Name: "m", Times: 1 + repeats}).Nanos)
		fact(t, name, "first %s, then %s (median of %d), 64 tensors", short(times[0]), short(median(times[1:])), repeats)
	})
}
