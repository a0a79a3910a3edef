//go:build linux

package gpu_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// needKind skips the test if the device does not support handles of the kind.
func needKind(tb testing.TB, kind driver.HandleKind) {
	tb.Helper()
	dev := openDevice(tb)
	if !slices.Contains(kindsHere(tb, dev), kind) {
		cannot(tb, "the device does not support handles of kind %s", kind)
	}
}

// shares imports an owner's memory in another process. It returns the answer for a fact, and whether the bytes are
// right.
func shares(reader *process, h driver.Handle, seed byte) (string, bool) {
	r := reader.give("shared", h, false)
	if r.Error != "" {
		return r.Answer, false
	}
	if r = reader.ask(request{Do: "verify", Key: "shared", Seed: seed}); r.Error != "" {
		return "opens, but: " + r.Answer, false
	}
	return "works", true
}

func TestFactPIDNamespaces(t *testing.T) {
	realOnly(t, "it finds other processes by their number in /proc")
	needKind(t, driver.CUDAIPC)
	needNamespaces(t, unix.CLONE_NEWPID)
	inside := func() *process { return owner(t, driver.CUDAIPC, 4<<20, 3, inNamespaces(unix.CLONE_NEWPID)) }

	o, reader := inside(), open(t, driver.CUDAIPC)
	require.NotEqual(t, o.must(request{Do: "pid"}).Offset, reader.must(request{Do: "pid"}).Offset)
	different, _ := shares(reader, o.export("m"), 3)
	fact(t, "ipc-pid-namespaces-different-pid", "%s", different)

	reader = open(t, driver.CUDAIPC, inNamespaces(unix.CLONE_NEWPID))
	require.EqualValues(t, 1, reader.must(request{Do: "pid"}).Offset)
	require.EqualValues(t, 1, o.must(request{Do: "pid"}).Offset)
	equal, _ := shares(reader, o.export("m"), 3)
	fact(t, "ipc-pid-namespaces-equal-pid", "%s", equal)
}

func TestFactDescriptorAcrossNamespaces(t *testing.T) {
	needKind(t, driver.CUDAFD)
	all := uintptr(unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC)
	needNamespaces(t, all)
	o := owner(t, driver.CUDAFD, 4<<20, 4, inNamespaces(all))
	reader := open(t, driver.CUDAFD, inNamespaces(all))
	require.Equal(t, o.must(request{Do: "pid"}).Offset, reader.must(request{Do: "pid"}).Offset, "also with equal numbers")
	says, ok := shares(reader, o.export("m"), 4)
	fact(t, "fd-namespaces", "%s", says)
	require.True(t, ok, "the product rests on this")
}

func TestFactEvents(t *testing.T) {
	realOnly(t, "its events are not kept in /dev/shm")
	needKind(t, driver.CUDAFD)
	needNamespaces(t, unix.CLONE_NEWNS|unix.CLONE_NEWIPC)
	own := func() *process {
		p := start(t, inNamespaces(unix.CLONE_NEWNS|unix.CLONE_NEWIPC))
		p.must(request{Do: "own shm"})
		p.must(request{Do: "open", Kind: string(driver.CUDAFD)})
		return p
	}
	try := func(o, other *process) string {
		o.must(request{Do: "alloc", Key: "e", Bytes: 4 << 20, Seed: 1})
		event := o.must(request{Do: "event", Key: "e"})
		o.must(request{Do: "record", Key: "e", Seed: 2})
		if r := other.ask(request{Do: "open event", Key: "e", Blob: event.Blob}); r.Error != "" {
			return r.Answer
		}
		if r := other.ask(request{Do: "wait event", Key: "e"}); r.Error != "" {
			return "opens, but: " + r.Answer
		}
		return "works"
	}
	fact(t, "event-shared-shm", "%s", try(open(t, driver.CUDAFD), open(t, driver.CUDAFD)))
	fact(t, "event-private-shm", "%s", try(own(), own()))

	o := open(t, driver.CUDAFD)
	event := o.must(request{Do: "event", Key: "e"})
	o.kill()
	late := open(t, driver.CUDAFD)
	fact(t, "event-owner-killed", "%s", late.ask(request{Do: "open event", Key: "e", Blob: event.Blob}).says())
}
